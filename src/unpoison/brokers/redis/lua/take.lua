-- Hand out waiting messages. ARGV: group, owner, how many at most, how many bytes, 1 for those that must run alone.
-- Returns nothing if another consumer took over from the owner, else a list of: number, message, counters, how often it came back.
local owner, limit, room = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if not is_known(owner) then return false end
local where, holder = waiting, owner
if ARGV[5] == '1' then where, holder = alone, '!' .. owner end
local taken = {}
for _, no in ipairs(redis.call('ZRANGEBYSCORE', where, '-inf', now(), 'LIMIT', 0, limit)) do
    local blob = redis.call('HGET', messages, no)
    if room <= 0 then break end
    if blob then
        redis.call('HSET', held, no, holder)
        taken[#taken + 1] = {no, blob, redis.call('HGET', counters, no), redis.call('HGET', returned, no)}
        room = room - #blob
    else
        forget(no)
    end
    redis.call('ZREM', where, no)
end
return taken
