-- Is there one that must run alone, now? ARGV: group.
return first_due(alone, '-inf', now()) and 1 or 0
