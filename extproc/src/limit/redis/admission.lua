
-- What decides whether there is room: what dead sidecars hold is given back, and every counter is asked.
local swept = {}

-- What the sidecars of expired leases held is free again, for this call already. Says whether there may be more.
local function sweep(counters, at_most)
  local more = false
  for s = 1, SETS do
    local known = swept[s]
    -- Numbers that are texts already need not be printed.
    local expired = call('ZRANGEBYSCORE', KEYS[s], '-inf', NOW, 'LIMIT', known and #known or '0', at_most)
    if #expired > 0 then
      known = known or {}
      for _, member in ipairs(expired) do
        each_held(counters, s, member, release)
        known[#known + 1] = member
      end
      swept[s] = known
      more = more or #expired == tonumber(at_most)
    end
  end
  return more
end

local function refuses(c)
  if c.mode == SOFT then
    return used(c) + c.held >= c.number
  elseif c.mode == STRICT then
    return used(c) + c.held + c.amount > c.number
  elseif c.mode == CHECK then
    return used(c) >= c.number
  end
  return false
end

local function first_refusal(counters)
  for i, c in ipairs(counters) do
    if refuses(c) then
      return i
    end
  end
  return GRANTED
end

-- GRANTED or the first counter that refuses. Nobody is refused for what a dead sidecar holds.
local function verdict(counters)
  local more = sweep(counters, SWEEP_AT_MOST)
  local verdict = first_refusal(counters)
  if verdict ~= GRANTED and more then
    sweep(counters, SWEEP_BEFORE_REFUSAL)
    verdict = first_refusal(counters)
  end
  return verdict
end

-- `left` is how long each lease set lives: one that became empty is gone.
local function write_swept(left)
  for s, members in pairs(swept) do
    call('ZREM', KEYS[s], unpack(members))
    left[s] = call('PTTL', KEYS[s])
  end
  for _, c in ipairs(others) do
    call('SET', c.key, packed(c), 'KEEPTTL')
  end
end

-- What is only given back or brought back lives no longer for it.
local function write_changed(counters)
  for _, c in ipairs(counters) do
    if c.changed and c.stored then
      call('SET', c.key, packed(c), 'KEEPTTL')
    elseif c.changed then
      write(c)
    end
  end
end
