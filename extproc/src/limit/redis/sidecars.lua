-- KEYS: the set of sidecars, by when each ends.
-- ARGV: this sidecar, its lifetime in ms; 0 takes it out.
-- Answers {how many there are, the bytes that this Redis uses, the bytes that it may}: 0 for what it does not tell, as an access list may
-- hide INFO, or sets no bound to (maxmemory).
local SET = KEYS[1]
local LIFETIME = tonumber(ARGV[2])

local time = redis.call('TIME')
local NOW = time[1] * 1000 + math.floor(time[2] / 1000)

for _, ended in ipairs(redis.call('ZRANGEBYSCORE', SET, '-inf', NOW)) do
  redis.call('ZREM', SET, ended)
end
if LIFETIME > 0 then
  redis.call('ZADD', SET, NOW + LIFETIME, ARGV[1])
  redis.call('PEXPIRE', SET, math.max(redis.call('PTTL', SET), LIFETIME))
else
  redis.call('ZREM', SET, ARGV[1])
end

local memory = redis.pcall('INFO', 'memory')
local function bytes(name)
  return type(memory) == 'string' and tonumber(string.match(memory, '\n' .. name .. ':(%d+)')) or 0
end
return { #redis.call('ZRANGEBYSCORE', SET, '-inf', '+inf'), bytes('used_memory'), bytes('maxmemory') }
