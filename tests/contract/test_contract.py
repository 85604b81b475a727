"""SQLite and memory keep every promise."""

from unpoison.testing.contract import *  # noqa: F403
