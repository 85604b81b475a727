-- Take over from consumers that are gone. ARGV: group, owner, the server's run, milliseconds of silence after which a consumer that is
-- none of ours is taken for gone, one that is to be taken for gone whatever it says (or '').
-- Returns for each: name, what it said last, how many messages came back, how many had been trimmed away.
local done = {}
local gone = gone_owners(ARGV[2], ARGV[3], tonumber(ARGV[4]))
if ARGV[5] ~= '' then gone = {{ARGV[5], ''}} end
for n, known in ipairs(gone) do
    local taken, trimmed = take_over(known[1])
    done[n] = {known[1], known[2], taken, trimmed}
end
return done
