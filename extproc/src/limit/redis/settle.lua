
-- Answers {1}, or {0} if the reservation was settled before.
if is_settled() then
  return { 0 }
end
local holds = read_holds({ 'used' })

local live = {}
for s = 1, SETS do
  live[s] = redis.call('ZREM', set(s), member(s)) == 1
end
redis.call('SET', TOMBSTONE, '', 'PX', TOMBSTONE_MS)
for _, h in ipairs(holds) do
  local held = live[h.set] and h.amount or 0
  local used = tonumber(h.used)
  if held > 0 or used > 0 then
    release(h.counter, held)
    charge(h.counter, used)
    write(h.key, h.counter, 'PX', h.ttl)
  end
end
keep_leases(holds)
return { 1 }
