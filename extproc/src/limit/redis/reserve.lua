
-- Members: what is to be held. A counter's number: its ceiling. Verdict: GRANTED or the first counter that refuses. The counters
-- are answered as they stood before.
local counters = read(1)
if not counters then
  return { OUTSIDE, NOW }
end
local left = lives(counters)

local verdict = verdict(counters)
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
  keep_leases(counters, left)
end
write_changed(counters)
return answer
