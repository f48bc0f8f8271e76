
-- Members: what is held as far as is known, what may be held instead. A counter's amount: what is held of it as far as is known;
-- its number: what was used. Verdict: GRANTED, or SETTLED if it was before. The counters are answered as they stand after.
local SETTLED = 1
local MEMBERS = 2
local counters = read(MEMBERS)
if not counters then
  return { OUTSIDE, NOW }
end
if not call('SET', KEYS[#KEYS], '', 'NX', 'PX', TOMBSTONE_MS) then
  return answer(SETTLED, counters)
end

for s = 1, SETS do
  for which = 1, MEMBERS do
    local member = ARGV[1 + (s - 1) * MEMBERS + which]
    if member ~= '' and call('ZREM', KEYS[s], member) == 1 then
      each_held(counters, s, member, release)
    end
  end
end
for _, c in ipairs(counters) do
  c.settled = min(c.settled + c.number, MAX_COUNT)
  if c.changed or c.number > 0 then
    write(c)
  end
end
return answer(GRANTED, counters)
