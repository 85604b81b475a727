"""What can go wrong with a server for the tests?"""


class ServerMissing(Exception):
    """The server cannot be had here: its tests are skipped, loudly. The text says what would help."""


class ServerFailed(Exception):
    """The server is there and does not do what it should: its tests fail."""
