-- For how many milliseconds the message that waits longest has been ready; -1 if none is, or if that cannot be told. ARGV: group.
local FIRST_TIME = 1e12 -- A smaller number in the id of an entry is not a time: its producer chose the id.
local moment, since = now(), nil
for _, where in ipairs({waiting, alone, later}) do
    local due = first_due(where, '-inf', moment)
    if due and (not since or due < since) then since = due end
end
if is_stream() then
    local found = our_group()
    local first = redis.call('XRANGE', source, found and '(' .. found['last-delivered-id'] or '-', '+', 'COUNT', 1)[1]
    local sent = first and tonumber(string.match(first[1], '^%d+'))
    if sent and sent < FIRST_TIME then return -1 end
    if sent and (not since or sent < since) then since = sent end
end
return since and math.max(0, math.floor(moment - since)) or -1
