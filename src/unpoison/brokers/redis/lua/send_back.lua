-- Send messages of letters that are elsewhere to the group. ARGV: group, then for each: the number it is to have, the message, its counters,
-- whether it must run alone. One that is still there from an earlier time, the answer to which got lost, is not sent twice.
-- Returns 1 for each.
local function is_there(no)
    return redis.call('ZSCORE', waiting, no) or redis.call('ZSCORE', alone, no) or redis.call('HEXISTS', held, no) == 1
end

local moment, sent = now(), {}
for at = 2, #ARGV, 4 do
    local no, blob, text, is_alone = unpack(ARGV, at, at + 3)
    if not is_there(no) then start_again(no, blob, text, is_alone, moment, (at - 2) / 4) end
    sent[#sent + 1] = 1
end
return sent
