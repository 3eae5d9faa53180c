-- Say up to which seam a generation has been backfilled. KEYS: 1 marker, 2 where it is said. ARGV: 1 life, 2 seam in ms.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('NOGEN ' .. KEYS[1]) end
redis.call('SET', KEYS[2], ARGV[2])
return 1
