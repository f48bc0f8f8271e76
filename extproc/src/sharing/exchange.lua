-- Hears what peers told since the last time, then tells what is new, in one step: what is told itself need not be heard.
-- KEYS: the log of news (stream), the loads (hash). ARGV: who we are, the last id that was heard or '', how far to look back
-- without one (ms), how long the log may be, our load or '', then entries.
local log, loads = KEYS[1], KEYS[2]
local me, heard_to, look_back_ms, longest_log, load = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local FIRST_ENTRY = 6

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function id(ms)
  return string.format('%.0f', math.max(ms, 0))
end
local function keep(key)
  if redis.call('PTTL', key) < KEEP_MS / 2 then
    redis.call('PEXPIRE', key, KEEP_MS)
  end
end

if redis.call('HLEN', loads) > MOST_PEERS then
  return redis.error_reply('ERR ' .. loads .. ' holds more loads than there can be sidecars')
end

local from = '(' .. heard_to
if heard_to == '' then
  from = id(now - look_back_ms)
  heard_to = id(now - 1) .. '-0'
end
local entries = redis.call('XRANGE', log, from, '+', 'COUNT', MOST_ENTRIES)
local news = {}
for _, entry in ipairs(entries) do
  heard_to = entry[1]
  local sender, payload = entry[2][1], entry[2][2]
  if sender ~= me and #entry[2] == 2 and #payload <= LONGEST_ENTRY then
    news[#news + 1] = now - tonumber(string.match(heard_to, '^%d+'))
    news[#news + 1] = payload
  end
end
local is_more = #entries == MOST_ENTRIES and 1 or 0

if load ~= '' then
  redis.call('HSET', loads, me, struct.pack('<d', now) .. load)
  keep(loads)
end
local all = redis.call('HGETALL', loads)
local told = {}
for index = 1, #all, 2 do
  local peer, value = all[index], all[index + 1]
  if peer ~= me and #peer == 8 and #value > 8 and #value <= LONGEST_LOAD + 8 then
    local age = math.abs(now - struct.unpack('<d', value))
    if age > FORGET_MS then
      redis.call('HDEL', loads, peer)
    elseif age <= EXPIRES_MS then
      told[#told + 1] = age
      told[#told + 1] = peer
      told[#told + 1] = string.sub(value, 9)
    end
  end
end

if #ARGV >= FIRST_ENTRY then
  local last
  for index = FIRST_ENTRY, #ARGV do
    last = redis.call('XADD', log, 'MAXLEN', '~', longest_log, '*', me, ARGV[index])
  end
  redis.call('XTRIM', log, 'MINID', '~', id(now - HISTORY_MS))
  keep(log)
  if is_more == 0 then
    heard_to = last
  end
end
return { now, heard_to, is_more, news, told }
