-- After a batch is written: move the heartbeat forward, count distinct records, add to the freshness histogram.
--
-- KEYS: 1 heartbeat, 2 freshness hash, 3 `used` counter, 4.. bitmaps of used offsets.
-- ARGV: 1 applied-through ms, 2 expiry of bitmaps in ms, 3 histogram as (bucket u32 | count u32)..., 4.. offsets within
--       each bitmap as u32.... A record's bit is set once, so `used` counts a record once however often it is sent.
local applied = redis.call('GET', KEYS[1])
if not applied or tonumber(ARGV[1]) > tonumber(applied) then redis.call('SET', KEYS[1], ARGV[1]) end
for pos = 1, #ARGV[3], 8 do
  local bucket, count = struct.unpack('<I4I4', ARGV[3], pos)
  redis.call('HINCRBY', KEYS[2], bucket, count)
end
local used = 0
for k = 4, #KEYS do
  for pos = 1, #ARGV[k], 4 do
    used = used + 1 - redis.call('SETBIT', KEYS[k], (struct.unpack('<I4', ARGV[k], pos)), 1)
  end
  redis.call('PEXPIRE', KEYS[k], ARGV[2])
end
if used > 0 then redis.call('INCRBY', KEYS[3], used) end
return used
