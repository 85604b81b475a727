"""How fast is unpoison, beside the same thing written by hand? `make bench` runs it; docs/performance.md explains it."""
