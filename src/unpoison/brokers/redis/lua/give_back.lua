-- Give back messages that an owner never received, because the answer was lost. ARGV: group, owner, then the numbers of those that
-- it received. Returns how many were given back.
local owner, known, moment, count = ARGV[2], {}, now(), 0
for n = 3, #ARGV do known[ARGV[n]] = true end
local all_held = redis.call('HGETALL', held)
for n = 1, #all_held, 2 do
    local no, holder = all_held[n], all_held[n + 1]
    if not known[no] and (holder == owner or holder == '!' .. owner) then
        put(holder == owner and waiting or alone, no, moment, 0, count)
        redis.call('HDEL', held, no)
        count = count + 1
    end
end
return count
