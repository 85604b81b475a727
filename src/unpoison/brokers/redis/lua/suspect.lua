-- Whether a message that must run alone is due. ARGV: group.
return first_due(alone, '-inf', now()) and 1 or 0
