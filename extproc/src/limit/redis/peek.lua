
-- Members: none. The counters are answered without what expired leases hold of them.
local counters = read(0)
if not counters then
  return { OUTSIDE, NOW }
end
lives(counters)
sweep(counters, SWEEP_BEFORE_REFUSAL)
return answer(GRANTED, counters)
