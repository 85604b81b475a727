-- Read dead letters. ARGV: group, state or '', after this id, up to this id, the same two as they are in the history, how many at most,
-- 1 for their ids alone. Returns for each: state, id, and its fields (or, from the history, all of them in one).
local state, low, high, low_padded, high_padded, limit, only_ids = unpack(ARGV, 2)
only_ids = only_ids == '1'
local found = {}
if (state == '' or state == 'dead') and redis.call('EXISTS', dlq) == 1 then
    for _, entry in ipairs(redis.call('XRANGE', dlq, '(' .. low, high, 'COUNT', limit)) do
        found[#found + 1] = {'dead', entry[1], not only_ids and entry[2] or ''}
    end
end
for name, where in pairs({replayed = replayed, discarded = discarded}) do
    if state == '' or state == name then
        for _, no in ipairs(redis.call('ZRANGEBYLEX', where, '(' .. low_padded, '[' .. high_padded, 'LIMIT', 0, limit)) do
            found[#found + 1] = {name, no, not only_ids and redis.call('HGET', history, no) or ''}
        end
    end
end
return found
