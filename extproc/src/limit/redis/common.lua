
-- What all scripts share. It reads; nothing is written before a script has read everything: Lua has no rollback.
--
-- KEYS: tombstone, lease sets, counters.
-- ARGV: number of lease sets, lease in ms, tombstone in ms, most leases to sweep; per lease set this reservation's member
--       ('' for none); per counter window in ms, time to live in ms, its lease set (0 for none), amount held, and what the
--       script reads for itself.
-- A member is '<reservation> <counter> <amount> <counter> <amount> ...', the counters without their set's prefix.
local TOMBSTONE = KEYS[1]
local SETS = tonumber(ARGV[1])
local LEASE_MS = tonumber(ARGV[2])
local TOMBSTONE_MS = ARGV[3]
local SWEEP_AT_MOST = ARGV[4]
local HEADER = 4

local time = redis.call('TIME')
local NOW = time[1] * 1000 + math.floor(time[2] / 1000)

-- A counter is 28 bytes: the window's index, what is settled in it, what was settled in the one before, what is held.
local FORMAT = '<I4ddd'
local SIZE = 28
-- Doubles count exactly to here; counters stop.
local MAX_COUNT = 9007199254740991

local function set(s)
  return KEYS[1 + s]
end

local function member(s)
  return ARGV[HEADER + s]
end

local function is_settled()
  return redis.call('EXISTS', TOMBSTONE) == 1
end

-- As the counter stands in Redis, or nil. Another size is another version's: it is not guessed at, it starts anew.
local function stored(key)
  local packed = redis.call('GET', key)
  if not packed or #packed ~= SIZE then
    return nil
  end
  local bucket, settled, previous, held = struct.unpack(FORMAT, packed)
  return { bucket = bucket, settled = settled, previous = previous, held = held, stored = true }
end

-- As it stands in the window that is current. It never goes back to a window that has ended, unless it is so far ahead of
-- the clock that it was the clock that ran wild. A hold belongs to no window.
local function current(key, window)
  local bucket = math.floor(NOW / window)
  local counter = stored(key)
  if not counter then
    return { bucket = bucket, settled = 0, previous = 0, held = 0 }
  end
  if counter.bucket < bucket or counter.bucket > bucket + 2 then
    counter.previous = counter.bucket == bucket - 1 and counter.settled or 0
    counter.settled = 0
    counter.bucket = bucket
  end
  return counter
end

-- Every counter that the script has seen, by its key.
local counters = {}

local function read_holds(own)
  local holds = {}
  local at = HEADER + SETS
  for i = 1 + SETS + 1, #KEYS do
    local hold = {
      key = KEYS[i],
      window = tonumber(ARGV[at + 1]),
      ttl = tonumber(ARGV[at + 2]),
      set = tonumber(ARGV[at + 3]),
      amount = tonumber(ARGV[at + 4]),
    }
    for n, name in ipairs(own) do
      hold[name] = ARGV[at + 4 + n]
    end
    at = at + 4 + #own
    counters[hold.key] = counters[hold.key] or current(hold.key, hold.window)
    hold.counter = counters[hold.key]
    holds[#holds + 1] = hold
  end
  return holds
end

local function hold(counter, amount)
  counter.held = math.min(counter.held + amount, MAX_COUNT)
end

local function release(counter, amount)
  counter.held = math.max(counter.held - amount, 0)
end

local function charge(counter, used)
  counter.settled = math.min(counter.settled + used, MAX_COUNT)
end

local function write(key, counter, ...)
  local packed = struct.pack(FORMAT, counter.bucket, counter.settled, counter.previous, counter.held)
  redis.call('SET', key, packed, ...)
  counter.written = true
end

-- Leases must be there for as long as any counter that they hold of.
local function keep_leases(holds)
  local longest = {}
  for _, h in ipairs(holds) do
    if h.set > 0 and h.counter.written then
      longest[h.set] = math.max(longest[h.set] or 0, h.ttl)
    end
  end
  for s, ttl in pairs(longest) do
    local left = redis.call('PTTL', set(s))
    if left ~= -2 and left < ttl then
      redis.call('PEXPIRE', set(s), ttl)
    end
  end
end
