"""Who works on letters, and how does the audit log name which?"""

import getpass
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from unpoison.filters.terms import quoted

NAMED = 10
"""Letters that the audit log names by their ids."""


def operator() -> str:
    """Who does this, as user@host. A note for colleagues, not a proof: with sudo it is the person behind it."""
    user = os.environ.get("SUDO_USER", "")
    with suppress(KeyError, OSError, ImportError):  # in a container the user often has no name
        user = user or getpass.getuser()
    return f"{user or f'uid {os.getuid()}'}@{socket.gethostname()}"


def by_ids(letter_ids: Sequence[str]) -> str:
    """Names these letters in the audit log, as a filter does."""
    named = " or ".join(f"id:{quoted(letter_id)}" for letter_id in letter_ids[:NAMED])
    more = len(letter_ids) - NAMED
    return f"{named} and {more:,} more" if more > 0 else named
