-- Read waiting letters, as many as fit. ARGV: group, after this id, how many at most, how many bytes they may have together. Returns their
-- entries up to the one that makes them more than that: how large one is, only reading it tells.
local after, limit, left = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local found = {}
while #found < limit and left > 0 do
    local entry = redis.call('XRANGE', dlq, '(' .. after, '+', 'COUNT', 1)[1]
    if not entry then break end
    for _, text in ipairs(entry[2]) do left = left - #text end
    found[#found + 1] = entry
    after = entry[1]
end
return found
