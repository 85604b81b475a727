-- Send letters of other programs to the stream or list that they came from. KEYS: those of the source, then that one. ARGV: group, how many
-- are kept in the history, then for each: id, the same padded, all its fields in one, those of its
-- message, its body. Returns the ids of those that were sent, or the type of a key that is neither.
local target = KEYS[#KEYS]
local kind = redis.call('TYPE', target)['ok']
if kind ~= 'stream' and kind ~= 'list' then return kind end
local sent = {}
for at = 3, #ARGV, 5 do
    local id, padded, fields, message, body = unpack(ARGV, at, at + 4)
    if redis.call('XRANGE', dlq, id, id)[1] then
        send_to(target, kind, message, body)
        redis.call('HSET', history, padded, fields)
        redis.call('ZADD', replayed, 0, padded)
        redis.call('XDEL', dlq, id)
        sent[#sent + 1] = id
    end
end
trim_history(replayed, ARGV[2])
return sent
