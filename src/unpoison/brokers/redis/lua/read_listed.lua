-- Read elements of a list, as many as fit. KEYS: the list alone. ARGV: group, from which on, how many at most, how many bytes they may have
-- together. Returns them up to the one that makes them more than that. A few are looked at in one go: each look walks through the list.
local FEW = 8
local first, limit, left = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found = {}
while #found < limit do
    local at = first + #found
    local part = redis.call('LRANGE', KEYS[1], at, at + math.min(FEW, limit - #found) - 1)
    if #part == 0 then return found end
    for _, element in ipairs(part) do
        found[#found + 1] = element
        left = left - #element
        if left <= 0 then return found end
    end
end
return found
