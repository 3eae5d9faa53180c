-- Merge batches of tile records into the tile lists of several keys. All or nothing, per call.
--
-- KEYS: 1 marker, 2 `used` counter, 3 `forgotten` counter, 4.. tile lists.
-- ARGV: 1 life, 2 record size in bytes, 3 retained span in tiles, 4 expiry in ms, 5 span of the counted memory in tiles,
--       6 expired records that may pile up before they are moved away, 7.. records for KEYS[4..].
-- Where the marker does not say `life`, Redis has lost what the writer counts on, and nothing is written: NOGEN.
-- A record is tile i64 | count i64 | cells, little-endian; a list is unique tiles, newest first, and so is each argument.
-- Returns one character per record: 1 applied, 0 ignored (not a higher count), 2 counted but below the span.
--
-- The count of events is a tile's sequence: it only grows, so a higher one wins and an older copy never does. Lua's
-- numbers are doubles: tiles and counts stay below 2^53 and records are copied as bytes, never built again.
--
-- `used` grows by (new count - known count), exactly once for each event, whatever is sent again. For that, tiles that
-- left the span are remembered in the list `<key>\0counted`: floor i64, then (tile i64 | count i64) in no order. What
-- is below its floor is refused and counted in `forgotten`. Its key is made here, not passed: one Redis node is assumed.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('NOGEN ' .. KEYS[1]) end
local size, retain, expiry_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local remember, slack = tonumber(ARGV[5]), tonumber(ARGV[6])
local used, forgotten = 0, 0
local NO_FLOOR = struct.pack('<i8', -9007199254740992)

local function tile_at(list, i) return (struct.unpack('<i8', list, (i - 1) * size + 1)) end
local function count_at(list, i) return (struct.unpack('<i8', list, (i - 1) * size + 9)) end
local function slice(list, i, j) return string.sub(list, (i - 1) * size + 1, j * size) end

local function remembered(key)
  local bytes = redis.call('GET', key .. '\0counted')
  local memory = {key = key .. '\0counted', at = {}, bytes = bytes or NO_FLOOR}
  for pos = 9, #memory.bytes, 16 do
    memory.at[struct.unpack('<i8', memory.bytes, pos)] = pos
  end
  memory.floor = struct.unpack('<i8', memory.bytes, 1)
  if not bytes then redis.call('SET', memory.key, NO_FLOOR, 'PX', expiry_ms) end
  return memory
end

-- Count a tile that is below the span. Returns its status.
local function count_below(memory, record)
  local tile, count = struct.unpack('<i8i8', record)
  local pos = memory.at[tile]
  if pos and pos > 0 then
    local known = struct.unpack('<i8', memory.bytes, pos + 8)
    if count <= known then return '0' end
    redis.call('SETRANGE', memory.key, pos - 1, string.sub(record, 1, 16))
    used = used + count - known
    return '2'
  end
  if tile < memory.floor then
    forgotten = forgotten + 1
    return '0'
  end
  redis.call('APPEND', memory.key, string.sub(record, 1, 16))
  used = used + count
  return '2'
end

-- Move the records of `list` from the i-th on to the counted memory, and cut that to its own span whenever an eighth of
-- it may have expired.
local function remember_expired(key, list, i, newest)
  local moved = {}
  for j = i, #list / size do moved[#moved + 1] = string.sub(list, (j - 1) * size + 1, (j - 1) * size + 16) end
  local name = key .. '\0counted'
  if redis.call('EXISTS', name) == 0 then moved[1] = NO_FLOOR .. moved[1] end
  redis.call('APPEND', name, table.concat(moved))
  local floor = newest - remember
  if floor > struct.unpack('<i8', redis.call('GETRANGE', name, 0, 7)) + remember / 8 then
    local bytes = redis.call('GET', name)
    local kept = {struct.pack('<i8', floor)}
    for pos = 9, #bytes, 16 do
      if struct.unpack('<i8', bytes, pos) >= floor then kept[#kept + 1] = string.sub(bytes, pos, pos + 15) end
    end
    redis.call('SET', name, table.concat(kept))
  end
  redis.call('PEXPIRE', name, expiry_ms)
end

local function write(key, new, statuses)
  local old = redis.call('GET', key) or ''
  local num_new, num_old = #new / size, #old / size
  local newest = tile_at(new, 1)
  local head = num_old > 0 and tile_at(old, 1)
  if head == newest and num_new == 1 then -- the common case: the current tile grew
    local known, count = count_at(old, 1), count_at(new, 1)
    if count <= known then
      statuses[#statuses + 1] = '0'
    else
      redis.call('SETRANGE', key, 0, new)
      used = used + count - known
      statuses[#statuses + 1] = '1'
    end
    return
  end
  if head and head > newest then newest = head end
  local floor = newest - retain + 1
  local parts, changed, o, run, memory = {}, false, 1, 1, nil
  for i = 1, num_new do
    local tile, status = tile_at(new, i), '1'
    local at = o <= num_old and tile_at(old, o)
    while at and at > tile do
      o = o + 1
      at = o <= num_old and tile_at(old, o)
    end
    if at == tile then
      local known, count = count_at(old, o), count_at(new, i)
      if count <= known then
        status = '0'
      else
        used = used + count - known
        parts[#parts + 1] = slice(old, run, o - 1)
        parts[#parts + 1] = slice(new, i, i)
        run, changed = o + 1, true
      end
      o = o + 1
    elseif tile >= floor then
      used = used + count_at(new, i)
      parts[#parts + 1] = slice(old, run, o - 1)
      parts[#parts + 1] = slice(new, i, i)
      run, changed = o, true
    else
      memory = memory or remembered(key)
      status = count_below(memory, slice(new, i, i))
    end
    statuses[#statuses + 1] = status
  end
  if not changed then return end
  parts[#parts + 1] = slice(old, run, num_old)
  local list = table.concat(parts)
  local num = #list / size
  if num > slack and tile_at(list, num - slack) < floor then
    local last = num
    while tile_at(list, last) < floor do last = last - 1 end
    remember_expired(key, list, last + 1, newest)
    list = slice(list, 1, last)
  end
  redis.call('SET', key, list, 'PX', expiry_ms)
end

local statuses = {}
for k = 4, #KEYS do write(KEYS[k], ARGV[k + 3], statuses) end
if used > 0 then redis.call('INCRBY', KEYS[2], string.format('%.0f', used)) end
if forgotten > 0 then redis.call('INCRBY', KEYS[3], forgotten) end
return table.concat(statuses)
