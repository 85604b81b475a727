-- Take over from consumers that are gone. ARGV: group, owner, the server's run id, milliseconds of silence after which a consumer of
-- another program is taken for gone, the name of an owner to take over from in any case (or '').
-- Returns for each: name, its last renewal, how many messages came back, how many had been trimmed.
local done = {}
local gone = gone_owners(ARGV[2], ARGV[3], tonumber(ARGV[4]))
if ARGV[5] ~= '' then gone = {{ARGV[5], ''}} end
for n, known in ipairs(gone) do
    local taken, trimmed = take_over(known[1])
    done[n] = {known[1], known[2], taken, trimmed}
end
return done
