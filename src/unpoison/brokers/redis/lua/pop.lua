-- Hand out the next of a list, from the end that LPUSH does not push to. ARGV and answer as those of take.lua.
local owner, limit, room = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if not is_known(owner) then return false end
local taken = {}
while #taken < limit and room > 0 do
    local body = redis.call('LINDEX', source, -1)
    if not body then break end
    local no = 'l' .. redis.call('INCR', numbers)
    local blob = packed({'', 'body', body})
    redis.call('HSET', messages, no, blob)
    redis.call('HSET', held, no, owner)
    redis.call('RPOP', source)
    taken[#taken + 1] = {no, blob, false, false}
    room = room - #body
end
return taken
