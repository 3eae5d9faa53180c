-- After a batch is written: move the heartbeat forward, count distinct records, add to the freshness histogram.
-- Answers how many records the group has used. An empty applied-through leaves the heartbeat where it is.
--
-- KEYS: 1 marker, 2 heartbeat, 3 freshness hash, 4 `used` counter, 5.. bitmaps of used offsets.
-- ARGV: 1 life, 2 applied-through ms, 3 expiry of bitmaps in ms, 4 histogram as (bucket u32 | count u32)..., 5.. offsets
--       within each bitmap as u32.... A record's bit is set once, so `used` counts a record once however often it is sent.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('NOGEN ' .. KEYS[1]) end
if ARGV[2] ~= '' then
  local applied = redis.call('GET', KEYS[2])
  if not applied or tonumber(ARGV[2]) > tonumber(applied) then redis.call('SET', KEYS[2], ARGV[2]) end
end
for pos = 1, #ARGV[4], 8 do
  local bucket, count = struct.unpack('<I4I4', ARGV[4], pos)
  redis.call('HINCRBY', KEYS[3], bucket, count)
end
local used = 0
for k = 5, #KEYS do
  for pos = 1, #ARGV[k], 4 do
    used = used + 1 - redis.call('SETBIT', KEYS[k], (struct.unpack('<I4', ARGV[k], pos)), 1)
  end
  redis.call('PEXPIRE', KEYS[k], ARGV[3])
end
if used > 0 then redis.call('INCRBY', KEYS[4], used) end
return tonumber(redis.call('GET', KEYS[4]) or 0)
