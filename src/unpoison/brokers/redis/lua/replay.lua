-- Send letters to their source again. ARGV: group, how many are kept in the history, then for each: id, the same padded, all its fields
-- in one, the number it is to have, the message, its counters, whether it must run alone. Returns the ids of those that were sent.
local moment, sent = now(), {}
for at = 3, #ARGV, 7 do
    local id, padded, fields, no, blob, text, is_alone = unpack(ARGV, at, at + 6)
    if redis.call('XRANGE', dlq, id, id)[1] then
        start_again(no, blob, text, is_alone, moment, (at - 3) / 7)
        redis.call('HSET', history, padded, fields)
        redis.call('ZADD', replayed, 0, padded)
        redis.call('XDEL', dlq, id)
        sent[#sent + 1] = id
    end
end
trim_history(replayed, ARGV[2])
return sent
