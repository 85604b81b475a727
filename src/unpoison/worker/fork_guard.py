"""Ends copies of the worker that a handler forks.

It may do what it was forked for, but when it comes back from the handler it must end: it would run the rest of the batch
a second time, and speak as the worker.
"""

import os
import sys
from contextlib import suppress

copies: list[int] = []
"""Empty in a worker; in a forked copy its process id. Looked at after every message, so it is a list and not a function."""


def note_copy() -> None:
    """Called in the copy, directly after the fork."""
    copies.append(os.getpid())


def end_copy() -> None:
    """After a handler has returned: a copy goes no further than here."""
    if copies:
        leave(0)


def leave(status: int) -> None:
    """End this process here and now: atexit handlers belong to the template, which made it by forking."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # a handler may have closed or replaced it
            stream.flush()
    os._exit(status)
