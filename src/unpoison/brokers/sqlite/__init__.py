"""The embedded default: a queue in a SQLite file, with no server at all."""
