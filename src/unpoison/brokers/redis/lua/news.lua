-- Whether a message is due or a consumer has vanished. ARGV: group, owner, the server's run id, silence as in take_over.lua.
local moment = now()
for _, where in ipairs({waiting, alone, later}) do
    if first_due(where, '-inf', moment) then return 1 end
end
if redis.call('TYPE', source)['ok'] == 'list' then return 1 end
return #gone_owners(ARGV[2], ARGV[3], tonumber(ARGV[4])) > 0 and 1 or 0
