"""The memory that the consumers of a fleet and their operators share."""
