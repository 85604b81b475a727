-- Count messages by state, at one moment. ARGV: group. Returns ready, delayed, leased.
local moment = now()
local ready, leased = 0, redis.call('HLEN', held)
local delayed = redis.call('ZCOUNT', waiting, '(' .. string.format('%.17g', moment), '+inf')
    + redis.call('ZCOUNT', alone, '(' .. string.format('%.17g', moment), '+inf')
    + redis.call('ZCOUNT', later, '(' .. string.format('%.17g', moment), '+inf')
ready = redis.call('ZCARD', waiting) + redis.call('ZCARD', alone) + redis.call('ZCARD', later) - delayed

-- Entries that the group has not read. Its `lag` is right unless entries were trimmed or removed unread: then they are counted.
local function unread(found)
    local size, lag = redis.call('XLEN', source), found['lag']
    local from = '(' .. found['last-delivered-id']
    if size == 0 or not redis.call('XRANGE', source, from, '+', 'COUNT', 1)[1] then return 0 end
    if lag and lag <= size - math.min(size, found['pending']) then return lag end
    local count = 0
    while true do
        local page = redis.call('XRANGE', source, from, '+', 'COUNT', AT_ONCE)
        if #page == 0 then return count end
        count = count + #page
        from = '(' .. page[#page][1]
    end
end

local kind = redis.call('TYPE', source)['ok']
if kind == 'list' then
    ready = ready + redis.call('LLEN', source)
elseif kind == 'stream' then
    local found = our_group()
    if found then
        ready = ready + unread(found)
        leased = leased + found['pending']
    else
        ready = ready + redis.call('XLEN', source)
    end
end
return {ready, delayed, leased}
