"""SQLite and memory keep every promise."""

from bezoar.testing.contract import *  # noqa: F403
