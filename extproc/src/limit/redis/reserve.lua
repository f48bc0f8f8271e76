
-- Members: what is to be held. A counter's number: its ceiling. Verdict: GRANTED or the first counter that refuses. The counters
-- are answered as they stood before.
local counters = read(1)
if not counters then
  return { OUTSIDE, NOW }
end
local left = lives(counters)

local function admits(c)
  if c.mode == SOFT then
    return used(c) + c.held < c.number
  elseif c.mode == STRICT then
    return used(c) + c.held + c.amount <= c.number
  end
  return used(c) < c.number
end

local function first_refusal()
  for i, c in ipairs(counters) do
    if c.refuses == 1 and not admits(c) then
      return i
    end
  end
  return GRANTED
end

local more = sweep(counters, SWEEP_AT_MOST)
local verdict = first_refusal()
if verdict ~= GRANTED and more then
  sweep(counters, SWEEP_BEFORE_REFUSAL)
  verdict = first_refusal()
end
local answer = answer(verdict, counters)

write_swept(left)
-- A reservation that is settled already comes too late: nobody would give its hold back.
if verdict == GRANTED and call('EXISTS', KEYS[#KEYS]) == 0 then
  for s = 1, SETS do
    local member = ARGV[1 + s]
    if member ~= '' then
      call('ZADD', KEYS[s], NOW + LEASE_MS, member)
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
