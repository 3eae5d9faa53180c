-- Put plain rows in place of older ones: the higher (event time, sequence) wins, an equal one changes nothing.
--
-- KEYS: 1 marker, 2.. rows. ARGV: 1 life, 2 expiry in ms, 3.. rows for KEYS[2..].
-- A row is format u8 | number of fields u16 | event time i64 | sequence i64 | …; only those two numbers are read here.
-- They stay below 2^53, because Lua's numbers are doubles. Returns one character per row: 1 applied, 0 ignored.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('NOGEN ' .. KEYS[1]) end
local won = {}
for k = 2, #KEYS do
  local new = ARGV[k + 1]
  local old = redis.call('GETRANGE', KEYS[k], 0, 18)
  local wins = true
  if #old == 19 then
    local time, sequence = struct.unpack('<i8i8', new, 4)
    local old_time, old_sequence = struct.unpack('<i8i8', old, 4)
    wins = time > old_time or (time == old_time and sequence > old_sequence)
  end
  if wins then redis.call('SET', KEYS[k], new, 'PX', ARGV[2]) end
  won[k - 1] = wins and '1' or '0'
end
return table.concat(won)
