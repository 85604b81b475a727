-- What a consumer needs to know after a read. ARGV: group, owner, how many bytes it may read at once. Moves due messages into the
-- stream. Returns: whether the owner is still one; how many were moved; whether messages wait for another start; milliseconds until
-- the next is due, or -1; up to where the group has read; how many entries can be read at once next time.
local AHEAD = 512
local owner, moment, brought = ARGV[2], now(), 0
if first_due(later, '-inf', moment) then
    for _, no in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', moment, 'LIMIT', 0, AT_ONCE)) do
        local blob = redis.call('HGET', later_messages, no)
        if blob then
            local fields = unpacked(blob)
            redis.call('XADD', source, '*', unpack(fields, 2))
            brought = brought + 1
        end
        redis.call('HDEL', later_messages, no)
        redis.call('ZREM', later, no)
    end
end
local soonest = -1
for _, where in ipairs({waiting, alone, later}) do
    local due = first_due(where, '(' .. string.format('%.17g', moment), '+inf')
    if due and (soonest < 0 or due - moment < soonest) then soonest = due - moment end
end
local found, groups = our_group()

-- The server knows the size of the nodes that hold the next entries. If all of them together are not too large to be read at once,
-- no part of them is. With other groups, or few entries, nothing is known.
local function harmless()
    local size, pending = found and redis.call('XLEN', source) or 0, found and found['pending'] or 0
    if groups ~= 1 or size - pending < 64 then return 0 end
    local sampled = pending + AHEAD
    local usage = redis.pcall('MEMORY', 'USAGE', source, 'SAMPLES', sampled)
    if type(usage) ~= 'number' then return 0 end
    local most = tonumber(ARGV[3])
    if usage / size * math.min(size, sampled) > most then return 0 end -- for there are no more nodes than entries
    local nodes = redis.call('XINFO', 'STREAM', source)[4]
    if usage / nodes * math.min(nodes, sampled) > most then return 0 end
    return math.min(size - pending, AHEAD)
end

return {
    is_known(owner) and 1 or 0,
    brought,
    first_due(waiting, '-inf', moment) and 1 or 0,
    math.ceil(soonest),
    found and found['last-delivered-id'] or '0-0',
    harmless(),
}
