
-- What all scripts share.
--
-- KEYS: lease sets; counters; the tombstone, for scripts that have one.
-- ARGV: the number of lease sets; for each of them as many members as the script knows; one packed string a counter.
-- A member of a lease set is '<reservation> <counter> <amount> <counter> <amount> ...', the counters without their set's
-- prefix, or '' for none. Its score is the lease's end.
--
-- Constants that the sidecar puts before it: LEASE_MS, TOMBSTONE_MS, SWEEP_AT_MOST, SWEEP_BEFORE_REFUSAL, RECOUNT_AT_MOST, MAX_COUNT
-- (doubles count exactly to there), BUCKETS_AHEAD (further ahead of the clock, it was the clock that ran wild).
--
-- Nothing is written before all that can fail is read: Lua has no rollback.
local call, pack, unpack_struct = redis.call, struct.pack, struct.unpack
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local SETS = tonumber(ARGV[1])

local time = call('TIME')
local NOW = time[1] * 1000 + floor(time[2] / 1000)

-- A counter: its bucket, how often it was reset, its life, what of the settled in the bucket was restored from earlier lives,
-- settled in the bucket, settled in the one before, held.
--
-- A life begins when Redis has lost the counter, and is named by the time in microseconds. Within one life a counter only grows, so what a sidecar
-- saw in it is in it. What it saw in an earlier life may be, or may be not yet: what was charged since then comes on top.
local FORMAT = '<I4I4I4dddd'
local SIZE = 44
-- Of a counter that was written before there were lives.
local FORMER_FORMAT, FORMER_SIZE, FORMER_LIFE = '<I4I4ddd', 32, 0
local NEW_LIFE = (time[1] * 1000000 + time[2]) % 2 ^ 32
-- Where they stand in a counter's table.
local LIFE, RESTORED = 1, 2
local SLIDING, CALENDAR = 1, 2
-- When a counter refuses; NEVER, where its limit does not. MADE is one that counts counters.
local SOFT, STRICT, CHECK, MADE = 0, 1, 2, 4

local GRANTED = 0
-- The sidecar's clock is so wrong that the calendar it sent does not hold the present; it tries again.
local OUTSIDE = -1
-- There is room for the counters of others, but for no more of this key's.
local CROWDED = -2

-- The bucket, its length and what is left of it, of the calendar's three that a counter's argument ends in.
local function of_calendar(argument, at)
  local before, current, after, first, second, third, last = unpack_struct('<I4I4I4dddd', argument, at)
  if NOW < first or NOW >= last then
    return nil
  elseif NOW < second then
    return before, second - first, second - NOW
  elseif NOW < third then
    return current, third - second, third - NOW
  end
  return after, last - third, last - NOW
end

-- Reads a stored counter into `c`, and says whether it is one.
local function unpack_counter(c, stored)
  if #stored == SIZE then
    c.bucket, c.epoch, c[LIFE], c[RESTORED], c.settled, c.previous, c.held = unpack_struct(FORMAT, stored)
  elseif #stored == FORMER_SIZE then
    c.bucket, c.epoch, c.settled, c.previous, c.held = unpack_struct(FORMER_FORMAT, stored)
    c[LIFE], c[RESTORED] = FORMER_LIFE, c.settled
  else
    -- Another size is another version's: it is not guessed at, it starts anew.
    return false
  end
  return true
end

-- Enters a bucket. A counter never goes back to one that has ended.
local function enter(c, bucket)
  if c.bucket < bucket or c.bucket > bucket + BUCKETS_AHEAD then
    c.previous = c.slides and c.bucket == bucket - 1 and c.settled or 0
    c.settled, c[RESTORED] = 0, 0
    c.bucket = bucket
  end
end

-- Brings back what Redis has lost and the sidecar has seen, unless it was reset since then.
local function raise(c, epoch, bucket, settled, previous, life)
  local was_epoch, was_settled, was_previous, was_restored = c.epoch, c.settled, c.previous, c[RESTORED]
  if epoch > c.epoch then
    -- What is settled here was settled before a reset, but for buckets that came after the one it was seen in.
    c.epoch = epoch
    if c.bucket <= bucket then
      c.settled, c[RESTORED] = 0, 0
    end
    c.previous = c.bucket > bucket + 1 and c.previous or 0
  end
  enter(c, max(bucket, c.bucket))
  if bucket == c.bucket then
    if life ~= c[LIFE] and settled > c[RESTORED] then
      c.settled = min(c.settled + settled - c[RESTORED], MAX_COUNT)
      c[RESTORED] = settled
    elseif life == c[LIFE] and settled > c.settled then
      -- Redis went back to an earlier state: this is another life from here on.
      c[LIFE], c.settled, c[RESTORED] = NEW_LIFE, settled, settled
    end
    c.previous = max(c.previous, previous)
  elseif c.slides and bucket == c.bucket - 1 then
    c.previous = max(c.previous, settled)
  end
  c.changed = c.epoch ~= was_epoch or c.settled ~= was_settled or c.previous ~= was_previous or c[RESTORED] ~= was_restored
end

-- The counters of the call as they stand now, or nil outside the calendar. `members` are those that the script knows of each
-- lease set.
local function read(members)
  local counters = {}
  local at = 1 + SETS * members
  for i = 1, #ARGV - at do
    local argument, key = ARGV[at + i], KEYS[SETS + i]
    local set, kind, mode, length, ttl, amount, number, epoch, bucket, settled, previous, life, rest =
      unpack_struct('<I2BBddddI4I4ddI4', argument)
    local now, left
    if kind == CALENDAR then
      now, length, left = of_calendar(argument, rest)
      if not now then
        return nil
      end
    else
      now = floor(NOW / length)
      left = (now + 1) * length - NOW
    end
    -- One named field more, and Lua takes twice the time and room for it.
    local c = {
      NEW_LIFE, 0, key = key, set = set, mode = mode, length = length, ttl = ttl, amount = amount, number = number,
      slides = kind == SLIDING, left = left, bucket = now, epoch = 0, settled = 0, previous = 0, held = 0,
      stored = false, changed = false,
    }
    local stored = call('GET', key)
    if stored and unpack_counter(c, stored) then
      c.stored = true
      enter(c, now)
    end
    if bucket > 0 and bucket <= now + BUCKETS_AHEAD and epoch >= c.epoch then
      raise(c, epoch, bucket, settled, previous, life)
    end
    if c.bucket > now then
      -- As if its bucket had just begun.
      c.left = length
    end
    counters[i] = c
  end
  return counters
end

local function packed(c)
  return pack(FORMAT, c.bucket, c.epoch, c[LIFE], c[RESTORED], c.settled, c.previous, c.held)
end

-- The answer of a script: its verdict, the time, the counters.
local function answer(verdict, counters)
  local answer = { verdict, NOW }
  for i, c in ipairs(counters) do
    answer[i + 2] = packed(c)
  end
  return answer
end

-- Settled use, of the bucket before only the share that lies within one length from now.
local function used(c)
  if c.previous == 0 then
    return c.settled
  end
  return c.settled + ceil(c.previous * c.left / c.length)
end

local function hold(c, amount)
  c.held = min(c.held + amount, MAX_COUNT)
end

local function release(c, amount)
  c.held = max(c.held - amount, 0)
end

local function write(c)
  call('SET', c.key, packed(c), 'PX', c.ttl)
  c.changed = false
end

-- What PTTL says of a key that is not there, and of one that stays.
local GONE, FOR_EVER = -2, -1

-- What the leases hold of a counter that is not there: it was evicted or deleted, or it is new, which only they can tell. Of
-- so many of them, a bounded time: beyond that too little is held until they end.
local function recount(c)
  local name = ' ' .. string.sub(c.key, #KEYS[c.set] - #'leases' + 1) .. ' '
  for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[c.set], '-inf', '+inf', 'LIMIT', '0', RECOUNT_AT_MOST)) do
    local _, last = string.find(member, name, 1, true)
    if last then
      c.held = min(c.held + tonumber(string.match(member, '^%d+', last + 1)), MAX_COUNT)
      c.changed = true
    end
  end
end

-- How long each lease set will live. Without it nobody holds anything of its counters.
local function lives(counters)
  local left = {}
  for s = 1, SETS do
    left[s] = call('PTTL', KEYS[s])
  end
  for _, c in ipairs(counters) do
    if left[c.set] == GONE then
      if c.held > 0 then
        c.held = 0
        c.changed = true
      end
    elseif c.set > 0 and not c.stored then
      recount(c)
    end
  end
  return left
end

-- Leases must be there for as long as any counter that they hold of: whatever makes a counter live longer sees to that.
-- They are kept somewhat longer, so that it need not be written every time.
local function keep_leases(counters, left)
  for _, c in ipairs(counters) do
    local set = c.set
    if set > 0 and left[set] ~= GONE and left[set] < c.ttl then
      left[set] = c.ttl + LEASE_MS
      call('PEXPIRE', KEYS[set], left[set])
    end
  end
end

local function take_lease(set, member, left)
  call('ZADD', KEYS[set], NOW + LEASE_MS, member)
  left[set] = max(left[set], FOR_EVER)
end

-- Counters by their keys: those of the call, and others that an expired lease held of.
local by_key
local others = {}

local function find(counters, key)
  if not by_key then
    by_key = {}
    for _, c in ipairs(counters) do
      by_key[c.key] = c
    end
  end
  local c = by_key[key]
  if c == nil then
    c = false
    -- Of a key that a stranger wrote it is an error, and no string.
    local stored = redis.pcall('GET', key)
    local other = { key = key }
    if type(stored) == 'string' and unpack_counter(other, stored) then
      c = other
      others[#others + 1] = c
    end
    by_key[key] = c
  end
  return c
end

-- Applies `change` to each counter that a member of a lease set holds of.
local function each_held(counters, set, member, change)
  local prefix = string.sub(KEYS[set], 1, -#'leases' - 1)
  for name, amount in string.gmatch(member, ' (%S+) (%d+)') do
    local c = find(counters, prefix .. name)
    if c then
      change(c, tonumber(amount))
      c.changed = true
    end
  end
end
