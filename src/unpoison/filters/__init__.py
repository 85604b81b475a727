"""One language to choose dead letters by, for Python, the command line, rules and the console."""
