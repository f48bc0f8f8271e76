
-- Answers {1}, or {0} if the reservation is settled.
if is_settled() then
  return { 0 }
end
local holds = read_holds({})

-- What is held is given back and held again. A lease that ended, or a counter that is gone, has nothing to give back; the
-- request runs on all the same and will be charged.
local live = {}
for s = 1, SETS do
  live[s] = member(s) ~= '' and redis.call('ZADD', set(s), NOW + LEASE_MS, member(s)) == 0
end
for _, h in ipairs(holds) do
  if h.amount > 0 then
    if live[h.set] then
      release(h.counter, h.amount)
    end
    hold(h.counter, h.amount)
    write(h.key, h.counter, 'PX', h.ttl)
  end
end
keep_leases(holds)
return { 1 }
