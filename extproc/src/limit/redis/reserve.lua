
-- Members: what is to be held. A counter's number: its ceiling. Verdict: GRANTED, CROWDED or the first counter that refuses. The
-- counters are answered as they stood before.
--
-- Where a client makes counters, by values of a header, a last one counts those that its key has made; its number: how many that
-- may be.
local counters = read(1)
if not counters then
  return { OUTSIDE, NOW }
end
local made = counters[#counters].mode == MADE and table.remove(counters)
local left = lives(counters)

local verdict = verdict(counters)
local new = 0
if made then
  for _, c in ipairs(counters) do
    new = new + (c.stored and 0 or 1)
  end
  -- The first ones need no comparison: a Redis that is nearly full still serves whoever is new.
  if verdict == GRANTED and new > 0 and used(made) > 0 and used(made) + new > made.number then
    return { CROWDED, NOW }
  end
end
local answer = answer(verdict, counters)

write_swept(left)
-- A reservation that is settled already comes too late: nobody would give its hold back.
if verdict == GRANTED and call('EXISTS', KEYS[#KEYS]) == 0 then
  for s = 1, SETS do
    local member = ARGV[1 + s]
    if member ~= '' then
      take_lease(s, member, left)
    end
  end
  for _, c in ipairs(counters) do
    if c.amount > 0 then
      hold(c, c.amount)
      write(c)
    end
  end
  if new > 0 then
    made.settled = made.settled + new
    write(made)
  end
  keep_leases(counters, left)
end
write_changed(counters)
return answer
