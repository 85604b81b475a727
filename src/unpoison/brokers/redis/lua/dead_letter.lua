-- Move messages to the DLQ. ARGV: group, owner, then for each: whether it waited before, its number, how many fields its letter has,
-- the fields. Returns how many of them another consumer has taken over, then the id of each letter, or '' for one that is not ours.
local owner, lost, copied, waited, numbers = ARGV[2], 0, {}, {}, {}
local at = 3
while at <= #ARGV do
    local has_waited, no, size = ARGV[at] == '1', ARGV[at + 1], tonumber(ARGV[at + 2])
    local is_mine, is_taken = whose(owner, has_waited, no)
    if is_mine then
        numbers[#numbers + 1] = redis.call('XADD', dlq, '*', unpack(ARGV, at + 3, at + 2 + size))
        local moved = has_waited and waited or copied
        moved[#moved + 1] = no
    else
        numbers[#numbers + 1] = ''
        if is_taken then lost = lost + 1 end
    end
    at = at + 3 + size
end
let_go(copied)
for _, no in ipairs(waited) do forget(no) end
table.insert(numbers, 1, lost)
return numbers
