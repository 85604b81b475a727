-- Record the start of a suspect. ARGV: group, owner, number, counters. Returns whether the owner holds it.
if redis.call('HGET', held, ARGV[3]) ~= '!' .. ARGV[2] or not is_known(ARGV[2]) then return 0 end
redis.call('HSET', counters, ARGV[3], ARGV[4])
return 1
