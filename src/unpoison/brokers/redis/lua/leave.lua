-- Remove an owner that holds nothing. Otherwise it stays, and the next consumer takes over. ARGV: group, owner.
local owner = ARGV[2]
for _, holder in ipairs(redis.call('HVALS', held)) do
    if holder == owner or holder == '!' .. owner then return 0 end
end
if our_group() then
    if redis.call('XPENDING', source, group, '-', '+', 1, owner)[1] then return 0 end
    redis.call('XGROUP', 'DELCONSUMER', source, group, owner)
end
return redis.call('HDEL', owners, owner)
