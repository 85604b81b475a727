-- The beginning of every script: the keys of one source and one group, and functions that several scripts share.
-- Redis serves no other client while a script runs, so each is one step. Commands that may be refused (a write to a full server, or
-- without permission) come first in each: Redis does not roll a script back.

local source, waiting, alone, held, messages, counters, returned, owners, numbers, later, later_messages,
    dlq, history, replayed, discarded = unpack(KEYS)
local group = ARGV[1]
local AT_ONCE = 1000 -- Lua passes no more than some thousand arguments to a call

local function now()
    local time = redis.call('TIME')
    return time[1] * 1000 + time[2] / 1000
end

-- Netstrings: see `packed` in envelope.py.
local function packed(texts)
    local parts = {}
    for n, text in ipairs(texts) do
        parts[n] = #text .. ':' .. text
    end
    return table.concat(parts)
end

local function unpacked(blob)
    local found, at = {}, 1
    while at <= #blob do
        local colon = string.find(blob, ':', at, true)
        local size = tonumber(string.sub(blob, at, colon - 1))
        found[#found + 1] = string.sub(blob, colon + 1, colon + size)
        at = colon + size + 1
    end
    return found
end

local function is_stream()
    return redis.call('TYPE', source)['ok'] == 'stream'
end

-- The fields of XINFO about our group, by name, and how many groups there are.
local function our_group()
    if not is_stream() then return nil, 0 end
    local groups = redis.call('XINFO', 'GROUPS', source)
    for _, flat in ipairs(groups) do
        local found = {}
        for n = 1, #flat, 2 do found[flat[n]] = flat[n + 1] end
        if found['name'] == group then return found, #groups end
    end
    return nil, #groups
end

local function is_known(owner)
    return redis.call('HEXISTS', owners, owner) == 1
end

local function is_only_group()
    return #redis.call('XINFO', 'GROUPS', source) == 1
end

-- Acknowledge entries that are finished or copied. They are deleted only if there is no other group, which may have still to read them.
local function let_go(ids)
    if #ids == 0 then return end
    local may_remove = is_only_group()
    for first = 1, #ids, AT_ONCE do
        local last = math.min(first + AT_ONCE - 1, #ids)
        redis.call('XACK', source, group, unpack(ids, first, last))
        if may_remove then redis.call('XDEL', source, unpack(ids, first, last)) end
    end
end

local function forget(no)
    redis.call('HDEL', messages, no)
    redis.call('HDEL', counters, no)
    redis.call('HDEL', returned, no)
    redis.call('HDEL', held, no)
end

-- Which of these entries the owner holds. XACK does not check that.
local function held_entries(owner, ids)
    local found = {}
    if #ids == 0 or not is_stream() then return found end
    local pending = redis.pcall('XPENDING', source, group, ids[1], ids[#ids], 100000, owner)
    if pending['err'] then return found end -- the group was destroyed
    for _, entry in ipairs(pending) do found[entry[1]] = true end
    for _, id in ipairs(ids) do
        if not found[id] and redis.call('XPENDING', source, group, id, id, 1, owner)[1] then found[id] = true end
    end
    return found
end

-- For an entry that the owner does not hold: whether another consumer took it. If none did, an earlier settle of this owner succeeded
-- and its answer was lost.
local function was_taken(owner, id)
    if not is_known(owner) then return true end
    local pending = is_stream() and redis.pcall('XPENDING', source, group, id, id, 1) or {}
    return pending['err'] ~= nil or pending[1] ~= nil
end

local function holds_waiting(owner, no)
    local holder = redis.call('HGET', held, no)
    return holder == owner or holder == '!' .. owner
end

local function was_waiting_taken(owner, no)
    if not is_known(owner) then return true end
    return redis.call('HEXISTS', held, no) == 1
end

-- Whether the owner holds a message and, if not, whether another consumer took it.
local function whose(owner, has_waited, no)
    if has_waited then
        local is_mine = holds_waiting(owner, no)
        return is_mine, not is_mine and was_waiting_taken(owner, no)
    end
    local is_mine = held_entries(owner, {no})[no]
    return is_mine, not is_mine and was_taken(owner, no)
end

-- Messages that are due at the same time keep their order, by fractions of a millisecond. Those due at once are set back by one
-- millisecond, so that the last of them is due as well.
local function put(where, no, moment, after, n)
    redis.call('ZADD', where, moment + (after > 0 and after or -1) + (n % 4096) / 4096, no)
end

-- Have a message started again by this group.
local function start_again(no, blob, text, is_alone, moment, n)
    redis.call('HSET', messages, no, blob)
    redis.call('HSET', counters, no, text)
    put(is_alone == '1' and alone or waiting, no, moment, 0, n)
end

-- Send a message to a stream, or to a list, which holds only bodies.
local function send_to(target, kind, message, body)
    if kind == 'stream' then
        redis.call('XADD', target, '*', unpack(unpacked(message)))
    else
        redis.call('LPUSH', target, body)
    end
end

-- Return everything that an owner held. Returns how many messages came back, and how many had been trimmed from the stream.
local function take_over(owner)
    local moment, taken, trimmed = now(), 0, 0
    local found = our_group()
    while found do
        local page = redis.call('XPENDING', source, group, '-', '+', AT_ONCE, owner)
        if #page == 0 then break end
        local ids = {}
        for n, pending in ipairs(page) do
            local id = pending[1]
            local entry = redis.call('XRANGE', source, id, id)[1]
            if entry then
                redis.call('HSET', messages, id, '0:' .. packed(entry[2]))
                redis.call('HINCRBY', returned, id, 1)
                put(waiting, id, moment, 0, taken)
                taken = taken + 1
            else
                trimmed = trimmed + 1
            end
            ids[n] = id
        end
        let_go(ids)
    end
    local all_held = redis.call('HGETALL', held)
    for n = 1, #all_held, 2 do
        local no, holder = all_held[n], all_held[n + 1]
        if holder == owner or holder == '!' .. owner then
            redis.call('HINCRBY', returned, no, 1)
            put(holder == owner and waiting or alone, no, moment, 0, taken)
            redis.call('HDEL', held, no)
            taken = taken + 1
        end
    end
    redis.call('HDEL', owners, owner)
    if found then redis.call('XGROUP', 'DELCONSUMER', source, group, owner) end
    return taken, trimmed
end

-- An owner is gone when its lease or its subscription has ended. Subscriptions say nothing after a restart or failover of the server:
-- then all of them have ended.
local function is_gone(owner, text, run, moment)
    local till, its_run, is_subscribed = string.match(text, '^([%d.]+) (%S+) (%d)')
    if not till or tonumber(till) < moment then return true end
    if is_subscribed == '0' or its_run ~= run then return false end
    local seen = redis.pcall('PUBSUB', 'NUMSUB', 'unpoison:owner:' .. owner)
    return not seen['err'] and seen[2] == 0
end

-- Other owners that are gone, and consumers of the group that were never owners and have been silent for that long.
local function gone_owners(me, run, silence)
    local moment, found = now(), {}
    local all = redis.call('HGETALL', owners)
    for n = 1, #all, 2 do
        if all[n] ~= me and is_gone(all[n], all[n + 1], run, moment) then found[#found + 1] = {all[n], all[n + 1]} end
    end
    if our_group() then
        for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', source, group)) do
            local consumer = {}
            for n = 1, #flat, 2 do consumer[flat[n]] = flat[n + 1] end
            if consumer['pending'] > 0 and consumer['idle'] > silence and not is_known(consumer['name']) then
                found[#found + 1] = {consumer['name'], ''}
            end
        end
    end
    return found
end

-- Keep only the latest letters that were replayed, or discarded.
local function trim_history(letters, most)
    local surplus = redis.call('ZCARD', letters) - tonumber(most)
    if surplus <= 0 then return end
    for _, no in ipairs(redis.call('ZRANGE', letters, 0, surplus - 1)) do
        redis.call('HDEL', history, no)
        redis.call('ZREM', letters, no)
    end
end

local function first_due(where, from, to)
    local found = redis.call('ZRANGEBYSCORE', where, from, to, 'WITHSCORES', 'LIMIT', 0, 1)
    return found[2] and tonumber(found[2])
end
