-- Merge last values into several keys, field by field: the higher (event time, event id) wins, the id bytewise.
--
-- KEYS: values. ARGV: 1 number of fields, 2 expiry in ms, 3.. cells for KEYS[1..].
-- A value is one cell a field: present u8, and if 1: event time i64, length of id u32, length of value u32, id, value.
-- Returns one character per key and field: 1 the incoming one won, 0 it did not or there was none.
-- Lua's `<` on strings asks the locale, so ids are compared byte by byte.
local num_fields, expiry_ms = tonumber(ARGV[1]), ARGV[2]

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

local won = {}
for k = 1, #KEYS do
  local new, old = cells(ARGV[k + 2]), cells(redis.call('GET', KEYS[k]) or '')
  local merged, changed = {}, false
  for f = 1, num_fields do
    local a, b = new[f], old[f]
    local wins = a.present
      and (not b.present or a.time > b.time or (a.time == b.time and id_is_higher(a.id, b.id)))
    won[#won + 1] = wins and '1' or '0'
    merged[f] = wins and a.bytes or b.bytes
    changed = changed or wins
  end
  if changed then redis.call('SET', KEYS[k], table.concat(merged), 'PX', expiry_ms) end
end
return table.concat(won)
