-- Take letters out of a list that other programs keep. KEYS: those of the source, the list, where they go. ARGV: group, 'send' (to a stream
-- or a list), 'keep' (in a list) or 'drop', then for each: the element, the fields of its message, its body. Returns for each 1 if it
-- was there and is done, or the type of a key that takes no letters.
local from, target = KEYS[#KEYS - 1], KEYS[#KEYS]
local action, kind = ARGV[2], redis.call('TYPE', KEYS[#KEYS])['ok']
if action == 'send' and kind ~= 'stream' and kind ~= 'list' and kind ~= 'none' then return kind end

-- LPOS is of Redis 6.0.6.
local function is_there(element)
    local place = redis.pcall('LPOS', from, element)
    if type(place) ~= 'table' then return place ~= false end
    for first = 0, redis.call('LLEN', from) - 1, AT_ONCE do
        for _, other in ipairs(redis.call('LRANGE', from, first, first + AT_ONCE - 1)) do
            if other == element then return true end
        end
    end
    return false
end

local done = {}
for at = 3, #ARGV, 3 do
    local element, message, body = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local found = is_there(element)
    if found then
        if action == 'keep' then
            redis.call('RPUSH', target, element)
        elseif action == 'send' then
            send_to(target, kind, message, body)
        end
        redis.call('LREM', from, 1, element)
    end
    done[#done + 1] = found and 1 or 0
end
return done
