-- Send messages of other programs' letters that are elsewhere to the stream or list that they came from. KEYS: that one alone. ARGV: group,
-- 1 if it may be a list that is empty now, then for each: the fields of the message, its body. Returns for each 1 or why it was refused;
-- or the type of a key that is neither.
local target = KEYS[1]
local kind = redis.call('TYPE', target)['ok']
if kind ~= 'stream' and kind ~= 'list' and not (kind == 'none' and ARGV[2] == '1') then return kind end
local sent = {}
for at = 3, #ARGV, 2 do
    local is_sent, problem = pcall(send_to, target, kind, ARGV[at], ARGV[at + 1])
    sent[#sent + 1] = is_sent and 1 or type(problem) == 'table' and problem['err'] or tostring(problem)
end
return sent
