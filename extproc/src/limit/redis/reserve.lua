
-- Answers {0 or the first counter that refuses; per counter settled, held, ms to the window's end}, as read before this hold.
local holds = read_holds({ 'mode', 'limit' })

-- What the sidecars of expired leases held is free again, for this request already.
local swept = {}
for s = 1, SETS do
  local prefix = string.sub(set(s), 1, -(#'leases' + 1))
  for _, lease in ipairs(redis.call('ZRANGEBYSCORE', set(s), '-inf', NOW, 'LIMIT', 0, SWEEP_AT_MOST)) do
    swept[#swept + 1] = { set = set(s), member = lease }
    local held = string.match(lease, '^%S+(.*)$')
    for name, amount in string.gmatch(held, '(%S+) (%d+)') do
      local key = prefix .. name
      counters[key] = counters[key] or stored(key)
      if counters[key] then
        release(counters[key], tonumber(amount))
        counters[key].freed = true
      end
    end
  end
end

local refuses = 0
local answer = { refuses }
for i, h in ipairs(holds) do
  local counter = h.counter
  local limit = tonumber(h.limit)
  local admits
  if h.mode == 'soft' then
    admits = counter.settled + counter.held < limit
  elseif h.mode == 'strict' then
    admits = counter.settled + counter.held + h.amount <= limit
  else
    admits = counter.settled < limit
  end
  if not admits and refuses == 0 then
    refuses = i
  end
  answer[#answer + 1] = counter.settled
  answer[#answer + 1] = counter.held
  answer[#answer + 1] = math.min((counter.bucket + 1) * h.window - NOW, h.window)
end
answer[1] = refuses

-- A reservation that is settled already comes too late: nobody would give its hold back.
local holding = refuses == 0 and not is_settled()

for _, lease in ipairs(swept) do
  redis.call('ZREM', lease.set, lease.member)
end
if holding then
  for s = 1, SETS do
    if member(s) ~= '' then
      redis.call('ZADD', set(s), NOW + LEASE_MS, member(s))
    end
  end
  for _, h in ipairs(holds) do
    if h.amount > 0 then
      hold(h.counter, h.amount)
      write(h.key, h.counter, 'PX', h.ttl)
    end
  end
  keep_leases(holds)
end
for key, counter in pairs(counters) do
  if counter.freed and counter.stored and not counter.written then
    write(key, counter, 'KEEPTTL')
  end
end
return answer
