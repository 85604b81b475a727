-- Remove finished messages. ARGV: group, owner, how many stream entries, their ids, then the numbers of those that waited before.
-- Returns how many of them another consumer has taken over.
local owner, count = ARGV[2], tonumber(ARGV[3])
local lost = 0

-- Nearly always they are just what the owner holds between the first and the last of them: then no table is made.
local function are_all_held()
    if count == 0 or count > AT_ONCE then return false end
    local pending = redis.pcall('XPENDING', source, group, ARGV[4], ARGV[3 + count], count, owner)
    if pending['err'] or #pending ~= count then return false end
    for n = 1, count do
        if pending[n][1] ~= ARGV[3 + n] then return false end
    end
    return true
end

local function let_go_of_those_held()
    local ids, ours = {}, {}
    for n = 1, count do ids[n] = ARGV[3 + n] end
    local mine = held_entries(owner, ids)
    for _, id in ipairs(ids) do
        if mine[id] then
            ours[#ours + 1] = id
        elseif was_taken(owner, id) then
            lost = lost + 1
        end
    end
    let_go(ours)
end

if are_all_held() then
    redis.call('XACK', source, group, unpack(ARGV, 4, 3 + count))
    if is_only_group() then redis.call('XDEL', source, unpack(ARGV, 4, 3 + count)) end
else
    let_go_of_those_held()
end
for n = 4 + count, #ARGV do
    if holds_waiting(owner, ARGV[n]) then
        forget(ARGV[n])
    elseif was_waiting_taken(owner, ARGV[n]) then
        lost = lost + 1
    end
end
return lost
