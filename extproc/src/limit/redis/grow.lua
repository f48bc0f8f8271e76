
-- Members: what is held as far as is known, what may be held instead, what is to be held. A counter's number: its ceiling.
-- Verdict: GRANTED or the first counter that refuses. The counters are answered as they stood without this reservation.
local MEMBERS = 3
local counters = read(MEMBERS)
if not counters then
  return { OUTSIDE, NOW }
end
if call('EXISTS', KEYS[#KEYS]) == 1 then
  return answer(GRANTED, counters)
end

local function member(s, which)
  return ARGV[1 + (s - 1) * MEMBERS + which]
end

-- A lease that has ended, or a counter that is gone, has nothing to give back. The request runs on all the same and will be
-- charged, so its lease is taken again.
for s = 1, SETS do
  for which = 1, MEMBERS do
    if member(s, which) ~= '' and call('ZREM', KEYS[s], member(s, which)) == 1 then
      each_held(counters, s, member(s, which), release)
    end
  end
end
local left = lives(counters)

local verdict = verdict(counters)
local answer = answer(verdict, counters)

write_swept(left)
for s = 1, SETS do
  local member = member(s, verdict == GRANTED and 3 or 1)
  if member ~= '' then
    take_lease(s, member, left)
    each_held(counters, s, member, hold)
  end
end
for _, c in ipairs(counters) do
  if c.amount > 0 then
    write(c)
  end
end
write_changed(counters)
keep_leases(counters, left)
return answer
