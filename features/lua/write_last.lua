-- Merge last and first values into several keys, field by field: the higher (first: the lower) (event time, event id)
-- wins, the id bytewise.
--
-- KEYS: 1 marker, 2.. values. ARGV: 1 life, 2 a character per field (1 the higher wins, 0 the lower),
-- 3 expiry in ms, 4.. cells for KEYS[2..].
-- A value is one cell a field: present u8, and if 1: event time i64, length of id u32, length of value u32, id, value.
-- Returns one character per key and field: 1 the incoming one won, 0 it did not or there was none.
-- Lua's `<` on strings asks the locale, so ids are compared byte by byte.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('NOGEN ' .. KEYS[1]) end
local guards, expiry_ms = ARGV[2], ARGV[3]
local num_fields = #guards

local function cells(bytes)
  local out, pos = {}, 1
  for f = 1, num_fields do
    local start = pos
    if bytes == '' or string.byte(bytes, pos) == 0 then
      out[f], pos = {present = false, bytes = '\0'}, pos + 1
    else
      local time, id_length, value_length = struct.unpack('<i8I4I4', bytes, pos + 1)
      pos = pos + 17 + id_length + value_length
      out[f] = {
        present = true, time = time, bytes = string.sub(bytes, start, pos - 1),
        id = string.sub(bytes, start + 17, start + 16 + id_length),
      }
    end
  end
  return out
end

local function id_is_higher(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

local function wins(f, new, old)
  if not new.present or not old.present then return new.present end
  if new.time == old.time and new.id == old.id then return false end
  local higher = new.time > old.time or (new.time == old.time and id_is_higher(new.id, old.id))
  return higher == (string.sub(guards, f, f) == '1')
end

local won = {}
for k = 2, #KEYS do
  local new, old = cells(ARGV[k + 2]), cells(redis.call('GET', KEYS[k]) or '')
  local merged, changed = {}, false
  for f = 1, num_fields do
    local a, b = new[f], old[f]
    local won_here = wins(f, a, b)
    won[#won + 1] = won_here and '1' or '0'
    merged[f] = won_here and a.bytes or b.bytes
    changed = changed or won_here
  end
  if changed then redis.call('SET', KEYS[k], table.concat(merged), 'PX', expiry_ms) end
end
return table.concat(won)
