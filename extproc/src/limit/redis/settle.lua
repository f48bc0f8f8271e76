
-- Members: what is held as far as is known, what may be held instead. A counter's amount: what is held of it as far as is known;
-- its number: what was used. Settling again changes nothing. The counters are answered as they stand after.
local counters = read(2)
if not counters then
  return { OUTSIDE, NOW }
end
if not call('SET', KEYS[#KEYS], '', 'NX', 'PX', TOMBSTONE_MS) then
  return answer(GRANTED, counters)
end

for s = 1, SETS do
  local from, doubt = ARGV[2 * s], ARGV[2 * s + 1]
  if from ~= '' and call('ZREM', KEYS[s], from) == 1 then
    for _, c in ipairs(counters) do
      if c.set == s then
        release(c, c.amount)
        c.changed = true
      end
    end
  end
  if doubt ~= '' and call('ZREM', KEYS[s], doubt) == 1 then
    each_held(counters, s, doubt, release)
  end
end
local left = lives(counters)
for _, c in ipairs(counters) do
  c.settled = min(c.settled + c.number, MAX_COUNT)
  if c.changed or c.number > 0 then
    write(c)
  end
end
keep_leases(counters, left)
return answer(GRANTED, counters)
