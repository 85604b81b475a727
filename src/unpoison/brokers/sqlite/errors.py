"""What the errors of SQLite mean for a queue, and for messages that were being published."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import UNCONFIRMED, Published, Refused, all_or_none

BUSY_TIMEOUT = 30.0
"""Seconds that a writer waits for its turn. Our transactions take under a millisecond; only another program takes that long."""

_REFUSALS = {
    sqlite3.SQLITE_TOOBIG: Refusal.TOO_LARGE,
    sqlite3.SQLITE_CONSTRAINT: Refusal.UNFIT,
    sqlite3.SQLITE_FULL: Refusal.NO_ROOM,
    sqlite3.SQLITE_READONLY: Refusal.NOT_PERMITTED,
    sqlite3.SQLITE_PERM: Refusal.NOT_PERMITTED,
    sqlite3.SQLITE_AUTH: Refusal.NOT_PERMITTED,
    sqlite3.SQLITE_BUSY: Refusal.NOT_SENT,
}

_UNDONE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY)
"""With these a commit did not happen."""


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Raise errors of SQLite as BrokerUnavailable, with what they mean and what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise BrokerUnavailable(f"SQLite file {path!r}: {error}. {_meaning(str(error))}") from error
    except OSError as error:
        raise BrokerUnavailable(
            f"SQLite file {path!r}: the lock files beside it cannot be used ({error}). Nothing is lost. "
            f"Check space, owner and mode of {path + '-owners'!r}."
        ) from error


def _meaning(error: str) -> str:
    if "full" in error:
        return "The disk is full: nothing more can be stored, nothing is lost. Free some space."
    if "readonly" in error:
        return "The file or its folder cannot be written by this user: nothing is lost. Check owner, mode and mount."
    if "locked" in error or "busy" in error:
        return f"Another program held a write transaction for more than {BUSY_TIMEOUT:g} s. End it; nothing is lost."
    if "not a database" in error or "malformed" in error:
        return "The file is not an intact SQLite database. Point the URL at another file, or restore it from a backup."
    if "unable to open" in error:
        return "Check that it is a file and no folder, and that this user may write it and the folder it is in."
    return UNCONFIRMED


def failed(messages: Sequence[Outgoing], error: BrokerUnavailable, largest: int, *, committing: bool) -> Published:
    """What became of messages written in one transaction. Until the commit, none is stored; a failed commit may have stored all.

    `largest` is how many bytes SQLite takes in one value.
    """
    code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
    if committing and code not in _UNDONE:
        return Published(unknown=dict.fromkeys(range(len(messages)), str(error)))
    refused = Refused(_REFUSALS.get(code, Refusal.OTHER), str(error))
    large = [number for number, message in enumerate(messages) if len(message.body) > largest]
    if code != sqlite3.SQLITE_TOOBIG or not large:
        return Published(dict.fromkeys(range(len(messages)), refused))
    why = "The message has {:,} bytes, and this SQLite takes {:,}."
    sizes = {number: len(messages[number].body) for number in large}
    return all_or_none(messages, {each: Refused(Refusal.TOO_LARGE, why.format(size, largest)) for each, size in sizes.items()})
