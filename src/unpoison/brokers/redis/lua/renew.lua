-- Register an owner, or renew its lease. ARGV: group, owner, milliseconds, the server's run id, host, process and time of
-- registration, 1 to register.
-- Returns whether it is an owner. It counts as subscribed only if this server sees its subscription.
local owner = ARGV[2]
if ARGV[6] ~= '1' and not is_known(owner) then return 0 end
local seen = redis.pcall('PUBSUB', 'NUMSUB', 'unpoison:owner:' .. owner)
local is_subscribed = ARGV[4] ~= '-' and not seen['err'] and seen[2] > 0
local till = string.format('%.0f', now() + ARGV[3])
redis.call('HSET', owners, owner, till .. ' ' .. ARGV[4] .. ' ' .. (is_subscribed and '1' or '0') .. ' ' .. ARGV[5])
return 1
