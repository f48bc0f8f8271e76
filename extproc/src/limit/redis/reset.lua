
-- Members: none. The counters are answered as they stand after. What was seen of a counter before says nothing from now on,
-- whatever Redis knows of earlier resets: so its epoch is at least the time in seconds.
local counters = read(0)
if not counters then
  return { OUTSIDE, NOW }
end
local left = lives(counters)
for _, c in ipairs(counters) do
  c.epoch = max(c.epoch + 1, floor(NOW / 1000))
  c.settled, c.previous, c[RESTORED] = 0, 0, 0
  write(c)
end
keep_leases(counters, left)
return answer(GRANTED, counters)
