"""An adapter for one more store, a folder of files, written as "How to add a broker" in CONTRIBUTING says. It is a test double:
it shows that these steps and the kit (`unpoison.port.copying`) are enough to keep every promise."""
