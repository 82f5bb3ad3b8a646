"""The scripts of a store in Redis, in Lua. Redis runs each one as a whole."""

from typing import Final

# The ARGV of each script starts with: channel, command to publish, name of a possible new epoch.
# KEYS: versions, order. Versions and positions are below 2^53, so they are exact as Lua's
# numbers; but its tostring rounds them to 14 digits.
BEGIN: Final = """
local versions, order = redis.call('TYPE', KEYS[1]).ok, redis.call('TYPE', KEYS[2]).ok
local epoch, position, began_on, floor = false, false, false, false
if versions == 'hash' then
    epoch, position, began_on, floor =
        unpack(redis.call('HMGET', KEYS[1], 'epoch', 'position', 'server', 'floor'))
end
local info = redis.pcall('INFO', 'server')
local server = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
local function is_foreign()
    if versions ~= 'hash' and versions ~= 'none' then return true end
    if order ~= 'zset' and order ~= 'none' then return true end
    if versions == 'hash' then return not epoch end
    return order == 'zset' and not redis.call('ZSCORE', KEYS[2], 'epoch')
end
if not epoch or order ~= 'zset' then
    if is_foreign() then return redis.error_reply('FOREIGN keys') end
    redis.call('DEL', KEYS[1], KEYS[2])
    epoch, position, began_on, floor = ARGV[3], '0', server, '0'
    redis.call('HSET', KEYS[1], 'epoch', epoch, 'server', server, 'position', position)
    redis.call('ZADD', KEYS[2], -1, 'epoch')
end
if began_on ~= server then
    epoch = ARGV[3]
    redis.call('HSET', KEYS[1], 'epoch', epoch, 'server', server)
end
floor = floor or '0'
local function publish(after, changes)
    local head = '["' .. epoch .. '",' .. after .. ',' .. position
    redis.call(ARGV[2], ARGV[1], head .. ',{' .. table.concat(changes, ',') .. '}]')
end
-- Redis does not undo a script after a refused command. So commands that may be refused come
-- first: rewrites of existing values, then the publication, and only then the writes.
local function check_writes()
    redis.call('HSET', KEYS[1], 'position', position)
    redis.call('ZADD', KEYS[2], -1, 'epoch')
end
if epoch == ARGV[3] then publish(position, {}) end
"""

READ: Final = """
-- further ARGV: since or '', limit of changes, names
local changed = {}
if ARGV[4] ~= '' and tonumber(ARGV[4]) < tonumber(position) then
    changed = redis.call(
        'ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[4], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[5])
end
local names = {}
for i = 1, #changed, 2 do names[#names + 1] = changed[i] end
for i = 6, #ARGV do names[#names + 1] = ARGV[i] end
local numbers = {}
for first = 1, #names, 1000 do
    local some = {unpack(names, first, math.min(first + 999, #names))}
    for i, version in ipairs(redis.call('HMGET', KEYS[1], unpack(some))) do
        numbers[#numbers + 1] = version or floor
    end
end
return {epoch, position, changed, numbers, redis.call('HGET', KEYS[1], 'forgotten') or '0'}
"""

WRITE: Final = """
-- further ARGV, for each key: name, name in JSON, floor, increment; without keys, checks whether
-- the server takes writes
local after, numbers, changes, scores, fields = position, {}, {}, {}, {}
for i = 4, #ARGV, 4 do
    local before = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or floor)
    local version = math.max(before, tonumber(ARGV[i + 2])) + tonumber(ARGV[i + 3])
    local text = string.format('%.0f', version)
    numbers[#numbers + 1] = text
    if version > before then
        fields[#fields + 1], fields[#fields + 2] = ARGV[i], text
        changes[#changes + 1] = ARGV[i + 1] .. ':' .. text
    end
end
if #changes > 0 then
    check_writes()
    position = string.format('%.0f', tonumber(position) + #changes)
    publish(after, changes)
    for i = 1, #fields, 2 do scores[i], scores[i + 1] = position, fields[i] end
    redis.call('HSET', KEYS[1], 'position', position, unpack(fields))
    redis.call('ZADD', KEYS[2], unpack(scores))
elseif #ARGV == 3 then
    check_writes()
    publish(position, {})
end
return {epoch, after, position, numbers}
"""

AGE: Final = """
local time = redis.call('TIME')
local samples = redis.call('HGET', KEYS[1], 'samples') or '[]'
return {epoch, time[1] + time[2] / 1e6 .. '', position, samples}
"""

FORGET: Final = """
-- further ARGV: samples or '', last position to forget or '', limit of keys, their epoch or '',
-- names
if ARGV[7] ~= '' and ARGV[7] ~= epoch then return 0 end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'samples', ARGV[4]) end
local names = {unpack(ARGV, 8)}
if ARGV[5] ~= '' then
    names = redis.call('ZRANGEBYSCORE', KEYS[2], '0', ARGV[5], 'LIMIT', 0, ARGV[6])
end
local highest, count = tonumber(floor), 0
local latest = tonumber(redis.call('HGET', KEYS[1], 'forgotten') or '0')
for _, name in ipairs(names) do
    local version = redis.call('HGET', KEYS[1], name)
    if version then
        highest = math.max(highest, tonumber(version))
        latest = math.max(latest, tonumber(redis.call('ZSCORE', KEYS[2], name)))
        redis.call('HDEL', KEYS[1], name)
        redis.call('ZREM', KEYS[2], name)
        count = count + 1
    end
end
if count > 0 then
    redis.call('HSET', KEYS[1], 'floor', string.format('%.0f', highest),
        'forgotten', string.format('%.0f', latest))
end
return count
"""

RENEW: Final = """
-- further ARGV: the epoch to end
if epoch == ARGV[4] then
    redis.call('HSET', KEYS[1], 'epoch', epoch)  -- a refusal comes here, before any change
    epoch = ARGV[3]
    publish(position, {})
    redis.call('HSET', KEYS[1], 'epoch', epoch)
end
return {epoch}
"""

SETTLE: Final = """
-- KEYS: names of the values. Further ARGV, for each key: its name in JSON, its token with the
-- value, its time to live in ms. Commands that may be refused come first: SET with XX changes
-- nothing on a missing key.
local settled, new, names = {}, {}, {}
for i = 1, #KEYS do
    local value = ARGV[3 * i + 2]
    local length = redis.call('STRLEN', KEYS[i])
    if length == 0 then
        redis.call('SET', KEYS[i], '', 'XX')
        new[#new + 1] = i
        names[#names + 1] = ARGV[3 * i + 1]
        settled[i] = 1
    else
        settled[i] = redis.call('GETRANGE', KEYS[i], 0, 15) == string.sub(value, 1, 16) and 1 or 0
    end
end
if #new > 0 then
    redis.call(ARGV[2], ARGV[1], '{"settled":[' .. table.concat(names, ',') .. ']}')
end
for _, i in ipairs(new) do redis.call('SET', KEYS[i], ARGV[3 * i + 2], 'PX', ARGV[3 * i + 3]) end
return settled
"""

SETTLED: Final = """
-- KEYS: names of the values. Further ARGV: size at which the read ends, in bytes
local values, size = {}, 0
for i = 1, #KEYS do
    local value = size <= tonumber(ARGV[4]) and redis.call('GET', KEYS[i])
    values[i] = value
    if value then size = size + #value - 16 end
end
return values
"""

RIGHTS: Final = """
-- KEYS: the name of a value that does not exist. Returns the commands of the scripts that this user
-- may not run. The server checks the rights before the type of a key, so
-- they change nothing.
local refused = {}
local function ask(command, ...)
    local reply = redis.pcall(command, ...)
    local error = type(reply) == 'table' and reply.err or ''
    if string.find(error, 'channel') then return end  -- WRITE asks for that
    if string.find(error, 'NOPERM') or string.find(error, 'permission')
            or string.find(error, "executing the script can't") then
        refused[#refused + 1] = command
    end
end
ask('SET', KEYS[1], '', 'PX', 1000)
local commands = 'TYPE,STRLEN,GET,GETRANGE 0 0,HGET x,HMGET x,HSET x x,HDEL x,ZADD 0 x,ZSCORE x,'
    .. 'ZRANGEBYSCORE 0 0,ZREM x,DEL'
if #refused > 0 then commands = '' end  -- without the value, HSET would make a hash
ask(ARGV[2], KEYS[1], '')
ask('INFO', 'server')
ask('TIME')
for line in string.gmatch(commands, '[^,]+') do
    local words = {}
    for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
    ask(words[1], KEYS[1], unpack(words, 2))
end
return refused
"""

ON_VERSIONS: Final = (READ, WRITE, AGE, FORGET, RENEW)
"""Scripts that follow `BEGIN`."""

ON_VALUES: Final = (SETTLE, SETTLED, RIGHTS)
