-- Keep messages for another start. ARGV: group, owner, then for each: whether it waited before, its number, its delay in
-- milliseconds, whether it must run alone, its counters or '', the message.
-- Returns how many of them another consumer has taken over.
local owner, moment, lost, copied = ARGV[2], now(), 0, {}
for at = 3, #ARGV, 6 do
    local has_waited, no, after, is_alone, text, blob = ARGV[at] == '1', unpack(ARGV, at + 1, at + 5)
    local is_mine, is_taken = whose(owner, has_waited, no)
    if is_mine then
        redis.call('HSET', messages, no, blob)
        if text == '' then
            redis.call('HDEL', counters, no)
        else
            redis.call('HSET', counters, no, text)
        end
        redis.call('HDEL', returned, no)
        put(is_alone == '1' and alone or waiting, no, moment, tonumber(after), (at - 3) / 6)
        redis.call('HDEL', held, no)
        if not has_waited then copied[#copied + 1] = no end
    elseif is_taken then
        lost = lost + 1
    end
end
let_go(copied)
return lost
