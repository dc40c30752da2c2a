"""What a Redis server does for the ledger of a shared cache: one script, each operation of it atomic.

``KEYS[1]`` is how all keys of the ledger begin; the arguments are the operation, the time, the silence after which a
rank counts as dead, the seat and the name of who asks, and what the operation takes. See ``redis_book``.
"""

FUNCTIONS = """
local P, op, now, silence = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local function call(...) return redis.call(...) end
local function live()
  local found = {}
  local beats = call('HGETALL', P .. ':beats')
  for i = 1, #beats, 2 do
    if tonumber(beats[i + 1]) > now - silence and call('HEXISTS', P .. ':ready', beats[i]) == 1 then
      found[#found + 1] = beats[i]
    end
  end
  return found
end
local function kin(seat)
  local found, group = {}, call('HGET', P .. ':groups', seat)
  local groups = call('HGETALL', P .. ':groups')
  for i = 1, #groups, 2 do if groups[i + 1] == group then found[#found + 1] = groups[i] end end
  return found
end
local function jobs(seats)
  local count, known = 0, {}
  for _, seat in ipairs(seats) do
    local group = call('HGET', P .. ':groups', seat)
    if not known[group] then count = count + 1 end
    known[group] = true
  end
  return count
end
local function had_all(seat)  -- nobody knows what it had: everything that is here counts
  for _, sample in ipairs(call('HKEYS', P .. ':place')) do call('SADD', P .. ':used:' .. seat, sample) end
  call('SADD', P .. ':used:' .. seat, '*')
end
local function had(sample, seats)
  for _, seat in ipairs(seats) do
    if call('SISMEMBER', P .. ':used:' .. seat, '*') == 0 then had_all(seat) end
    if call('SISMEMBER', P .. ':used:' .. seat, sample) == 1 then return true end
  end
  return false
end
local function place(sample)
  local word = call('HGET', P .. ':place', sample)
  if not word then return nil end
  local form, size, seat = string.match(word, '^(%d+) (%d+) (%-?%d+)$')
  return tonumber(form), tonumber(size), tonumber(seat)
end
local function need(sample, seats)
  local count, once = 0, place(sample) == 3
  for _, seat in ipairs(seats) do
    if call('GETBIT', P .. ':seen:' .. seat, sample) == 0 and not (once and had(sample, kin(seat))) then
      count = count + 1
    end
  end
  return count
end
local function remove(sample)
  local form, size = place(sample)
  if not form then return nil end
  call('HDEL', P .. ':place', sample)
  if call('HINCRBY', P .. ':bytes', form, -size) < 0 then call('HSET', P .. ':bytes', form, 0) end  -- sums evicted
  call('SREM', P .. ':cached', sample)
  call('HDEL', P .. ':arriving', sample)
  for _, seat in ipairs(call('HKEYS', P .. ':beats')) do call('SREM', P .. ':used:' .. seat, sample) end
  return form
end
local function abandon(seat, into)
  local arriving = call('HGETALL', P .. ':arriving')
  for i = 1, #arriving, 2 do
    if string.match(arriving[i + 1], '^%d+') == seat then
      local form = remove(arriving[i])
      if form then  -- the server itself may have evicted its place
        into[#into + 1] = arriving[i]
        into[#into + 1] = form
      end
    end
  end
end
local function leave(seat)
  for _, fact in ipairs({':names', ':beats', ':ready', ':groups', ':ranks'}) do call('HDEL', P .. fact, seat) end
  call('UNLINK', P .. ':seen:' .. seat, P .. ':fresh:' .. seat, P .. ':used:' .. seat)
end
local function least(count, seats)
  local found = {}
  for _, sample in ipairs(call('SRANDMEMBER', P .. ':cached', count)) do
    if place(sample) then found[#found + 1] = {need(sample, seats), sample}
    else call('SREM', P .. ':cached', sample) end
  end
  table.sort(found, function(a, b) return a[1] < b[1] end)
  return found
end
local function budget(form) return tonumber(call('HGET', P .. ':budget', form) or '0') end
local function held(form) return tonumber(call('HGET', P .. ':bytes', form) or '0') end
local function shed(count, seats, into)
  local over = {}
  for form = 1, 3 do if held(form) > budget(form) then over[form] = true end end
  if not next(over) then return end
  for _, entry in ipairs(least(8 * count, seats)) do
    local form = place(entry[2])
    if count > 0 and form and over[form] and held(form) > budget(form) then
      into[#into + 1] = entry[2]
      into[#into + 1] = remove(entry[2])
      count = count - 1
    end
  end
  call('HINCRBY', P .. ':counts', 'evicted', #into / 2)
end
local function writing(seat, sample)
  local who = call('HGET', P .. ':arriving', sample)
  return who and string.match(who, '^%d+') == seat
end
local function division(facts)
  for at, value in ipairs(facts) do call('HSET', P .. ':division', at, value) end
  local room, rest = tonumber(facts[12]), tonumber(facts[12])
  for form = 1, 2 do
    local bytes = math.floor(room * facts[1 + form] / 100)
    call('HSET', P .. ':budget', form, bytes)
    rest = rest - bytes
  end
  call('HSET', P .. ':budget', 3, tonumber(facts[4]) > 0 and rest or 0)
end
local function divided()
  local facts = {}
  for at = 1, 12 do facts[at] = tonumber(call('HGET', P .. ':division', at) or '0') end
  return facts
end

local seat, name = ARGV[4], ARGV[5]
if op == 'join' then
  local gone = {}
  local beats = call('HGETALL', P .. ':beats')
  for i = 1, #beats, 2 do
    if tonumber(beats[i + 1]) <= now - silence then
      abandon(beats[i], gone)
      leave(beats[i])
    end
  end
  for form = 1, 3 do call('HSETNX', P .. ':budget', form, ARGV[6 + form]) end
  for free = 0, 61 do
    if call('HSETNX', P .. ':names', free, name) == 1 then
      call('HSET', P .. ':beats', free, now)
      call('HSET', P .. ':groups', free, ARGV[6])
      if ARGV[10] == '1' then had_all(free) else call('SADD', P .. ':used:' .. free, '*') end
      return {free, gone}
    end
  end
  return {-1, gone}
elseif op == 'agree' then
  local facts, alone, parts = divided(), true, {tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])}
  local beats = call('HGETALL', P .. ':beats')
  for i = 1, #beats, 2 do
    if beats[i] ~= seat and tonumber(beats[i + 1]) > now - silence then alone = false end
  end
  local fixed = (tonumber(ARGV[10]) == 1 or (facts[5] == 1 and not alone)) and 1 or 0
  local room = tonumber(ARGV[9])
  if ARGV[10] == '0' and facts[12] > 0 then parts = {facts[2], facts[3], facts[4]} end
  local same = facts[12] == room and facts[5] == fixed
  for at = 1, 3 do same = same and parts[at] == facts[1 + at] end
  if not same then
    local before = facts[12] > 0 and {facts[2], facts[3], facts[4]} or parts
    division({facts[1] + 1, parts[1], parts[2], parts[3], fixed, before[1], before[2], before[3], 0, 0, 0, room})
  end
  call('HSET', P .. ':division', 'samples', ARGV[11])
  call('HSET', P .. ':budget', 'agreed', 1)
  return 1
elseif op == 'facts' then
  local ranks = {}
  local beats = call('HGETALL', P .. ':beats')
  for i = 1, #beats, 2 do
    local rank = call('HGET', P .. ':ranks', beats[i])
    if rank and tonumber(beats[i + 1]) > now - silence then
      ranks[#ranks + 1] = call('HGET', P .. ':groups', beats[i])
      ranks[#ranks + 1] = rank
    end
  end
  return {divided(), call('HGETALL', P .. ':measured'), ranks}
elseif op == 'divide' then
  local facts = divided()
  if facts[12] == 0 or facts[5] == 1 or facts[1] ~= tonumber(ARGV[6]) - 1 then return 0 end
  local new = {}
  for at = 1, 11 do new[at] = tonumber(ARGV[5 + at]) end
  new[12] = facts[12]
  division(new)
  local sums = call('HGETALL', P .. ':measured')
  for i = 1, #sums, 2 do call('HSET', P .. ':measured', sums[i], math.floor(sums[i + 1] / 2)) end
  return 1
end

if call('HGET', P .. ':names', seat) ~= name then return 'lost' end
local agreed = call('HEXISTS', P .. ':budget', 'agreed') == 1
if call('EXISTS', P .. ':budget') == 0 or (agreed and call('EXISTS', P .. ':division') == 0) then
  leave(seat)  -- the server evicted it: whoever sits down again says it again
  return 'lost'
end
call('HSET', P .. ':beats', seat, now)
if call('EXISTS', P .. ':place') == 0 then call('UNLINK', P .. ':bytes', P .. ':cached', P .. ':arriving') end

if op == 'measure' then
  for at = 6, #ARGV do call('HINCRBY', P .. ':measured', at - 6, ARGV[at]) end
  return 1
elseif op == 'report' then
  call('HSET', P .. ':ranks', seat, ARGV[6])
  return 1
elseif op == 'writing' then
  local found, arriving = {}, call('HGETALL', P .. ':arriving')
  for i = 1, #arriving, 2 do
    local who, process = string.match(arriving[i + 1], '^(%d+) (%d+)$')
    if who == seat then
      found[#found + 1] = arriving[i]
      found[#found + 1] = process
    end
  end
  return found
elseif op == 'bury' then
  local gone = {}
  for at = 6, #ARGV do
    if writing(seat, ARGV[at]) then
      gone[#gone + 1] = ARGV[at]
      gone[#gone + 1] = remove(ARGV[at])
    end
  end
  return gone
elseif op == 'begin' then
  call('SET', P .. ':seen:' .. seat, ARGV[6])
  call('UNLINK', P .. ':fresh:' .. seat)
  call('SUNIONSTORE', P .. ':fresh:' .. seat, P .. ':cached')
  call('HSET', P .. ':ready', seat, 1)
  return 1
elseif op == 'leave' then
  local gone = {}
  abandon(seat, gone)
  leave(seat)
  return gone
elseif op == 'request' or op == 'look' then
  local count, asked = tonumber(ARGV[6]), tonumber(ARGV[7])
  local seen, chosen, hits, misses, out, gone = P .. ':seen:' .. seat, {}, 0, {}, {}, {}
  local seats, ranks = live(), kin(seat)
  shed(math.ceil(count / 8), seats, gone)
  local function serve(sample)
    local form, _, writer = place(sample)
    local able = form and writer < 0
    if able and form == 3 and had(sample, ranks) then able = false end
    if not able then return false end
    chosen[sample] = true
    call('SETBIT', seen, sample, 1)
    call('SADD', P .. ':used:' .. seat, sample)
    call('HINCRBY', P .. ':counts', 'hits' .. form, 1)
    hits = hits + 1
    out[#out + 1] = sample
    out[#out + 1] = form
    out[#out + 1] = 0
    return true
  end
  local drawn, alone = 0, jobs(seats) < 2  -- nobody else might bring what is put off
  for i = 8, 7 + asked do
    if hits + drawn < count and not serve(ARGV[i]) and alone then
      chosen[ARGV[i]] = true
      misses[#misses + 1] = {math.huge, ARGV[i]}
      drawn = drawn + 1
    end
  end
  while op == 'request' and hits + drawn < count do
    local fresh = call('SPOP', P .. ':fresh:' .. seat, count - hits - drawn)
    if #fresh == 0 then break end
    for _, sample in ipairs(fresh) do
      if not chosen[sample] and call('GETBIT', seen, sample) == 0 then serve(sample) end
    end
  end
  for i = 8, #ARGV do
    local sample = ARGV[i]
    if hits + drawn < count and not chosen[sample] and call('GETBIT', seen, sample) == 0 and not serve(sample) then
      chosen[sample] = true
      misses[#misses + 1] = {need(sample, seats) + (i < 8 + asked and 0.5 or 0), sample}
    end
  end
  table.sort(misses, function(a, b) return a[1] > b[1] end)
  local lacking, room = count - hits, 0
  local entries = math.max(1, call('HLEN', P .. ':place'))
  for form = 1, 3 do
    local sized = tonumber(call('HGET', P .. ':measured', 8 + 2 * form) or '0')
    local more = held(form) / entries
    if sized > 0 then more = tonumber(call('HGET', P .. ':measured', 7 + 2 * form)) / sized end
    if held(form) + more < budget(form) then room = form end
  end
  local victims = (room == 0 and lacking > 0) and least(math.min(128, 2 * lacking), seats) or {}
  for i = 1, math.min(lacking, #misses) do
    local sample, keep = misses[i][2], room
    call('SETBIT', seen, sample, 1)
    if room == 0 and victims[i] and need(sample, seats) > victims[i][1] then keep = place(victims[i][2]) end
    out[#out + 1] = sample
    out[#out + 1] = 0
    out[#out + 1] = keep
  end
  call('HINCRBY', P .. ':counts', 'misses', math.min(lacking, #misses))
  return {out, gone}
elseif op == 'reserve' then
  local sample, form, size = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
  local its, _, writer = place(sample)
  if its and writer >= 0 and call('HEXISTS', P .. ':arriving', sample) == 0 then remove(sample)
  elseif its or size > budget(form) then return {0} end
  local seats, out, freed = live(), {1}, 0
  local worth, over = need(sample, seats), held(form) + size - budget(form)
  local chosen = {}
  if over > 0 then
    for _, victim in ipairs(least(64, seats)) do
      local its, bytes = place(victim[2])
      if freed >= over or victim[1] >= worth then break end
      if its == form then
        chosen[#chosen + 1] = victim[2]
        freed = freed + bytes
      end
    end
    if freed < over then return {0} end
  end
  for _, victim in ipairs(chosen) do
    out[#out + 1] = victim
    out[#out + 1] = remove(victim)
  end
  call('HINCRBY', P .. ':counts', 'evicted', #chosen)
  call('HSET', P .. ':place', sample, form .. ' ' .. size .. ' ' .. seat)
  call('HSET', P .. ':arriving', sample, seat .. ' ' .. ARGV[9])
  call('HINCRBY', P .. ':bytes', form, size)
  return out
elseif op == 'settle' then
  local sample = ARGV[6]
  if not writing(seat, sample) then return 0 end
  local form, size = place(sample)
  call('HDEL', P .. ':arriving', sample)
  if not form then return 0 end
  call('HSET', P .. ':place', sample, form .. ' ' .. size .. ' -1')
  call('SADD', P .. ':cached', sample)
  for _, other in ipairs(call('HKEYS', P .. ':beats')) do
    call('SREM', P .. ':used:' .. other, sample)
    if call('GETBIT', P .. ':seen:' .. other, sample) == 0 then call('SADD', P .. ':fresh:' .. other, sample) end
  end
  if ARGV[7] == '1' then call('SADD', P .. ':used:' .. seat, sample) end
  call('HINCRBY', P .. ':counts', 'admitted', 1)
  return 1
elseif op == 'cancel' then
  if writing(seat, ARGV[6]) then remove(ARGV[6]) end
  return 1
elseif op == 'lost' then
  local form, _, writer = place(ARGV[6])
  if form == tonumber(ARGV[7]) and writer < 0 then
    remove(ARGV[6])
    call('HINCRBY', P .. ':counts', 'lost', 1)
  end
  return 1
end
"""
