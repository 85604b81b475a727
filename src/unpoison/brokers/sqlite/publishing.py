"""What became of messages that could not be published?

They were written in one transaction. Until it is committed none of them is stored, for certain; if the commit itself fails,
SQLite may have written all of it.
"""

import sqlite3
from collections.abc import Sequence

from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import Published, Refused, all_or_none

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
"""With these a commit has not happened: what it had to write was not written."""


def failed(messages: Sequence[Outgoing], error: BrokerUnavailable, largest: int, *, committing: bool) -> Published:
    """`largest` is how many bytes SQLite takes in one value."""
    code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF  # without what extended codes add
    if committing and code not in _UNDONE:
        return Published(unknown=dict.fromkeys(range(len(messages)), str(error)))
    refused = Refused(_REFUSALS.get(code, Refusal.OTHER), str(error))
    large = [number for number, message in enumerate(messages) if len(message.body) > largest]
    if code != sqlite3.SQLITE_TOOBIG or not large:
        return Published(dict.fromkeys(range(len(messages)), refused))
    sizes = {
        number: f"The message has {len(messages[number].body):,} bytes, and this SQLite takes {largest:,}." for number in large
    }
    return all_or_none(messages, {number: Refused(Refusal.TOO_LARGE, told) for number, told in sizes.items()})
