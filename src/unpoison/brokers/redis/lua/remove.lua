-- Delete letters, or keep them as discarded. ARGV: group, their state, 1 to keep them, how many are kept in the history, then for
-- each: id, the same padded, all its fields in one. Returns the ids of those that were changed.
local state, keep = ARGV[2], ARGV[3] == '1'
local where, changed = ({replayed = replayed, discarded = discarded})[state], {}
for at = 5, #ARGV, 3 do
    local id, padded, fields = unpack(ARGV, at, at + 2)
    local is_there
    if where then
        is_there = redis.call('ZREM', where, padded) == 1
        redis.call('HDEL', history, padded)
    elseif redis.call('XRANGE', dlq, id, id)[1] then
        is_there = true
        if keep then
            redis.call('HSET', history, padded, fields)
            redis.call('ZADD', discarded, 0, padded)
        end
        redis.call('XDEL', dlq, id)
    end
    if is_there then changed[#changed + 1] = id end
end
if keep then trim_history(discarded, ARGV[4]) end
return changed
