"""What stands beside a message's body: its properties, kept as bytes, field by field.

Copies keep what the sender set, but for three fields that would do harm on them: an expiration (the copy would vanish),
the user id (the server refuses one that is not ours) and the delivery mode (a copy is always persistent).
"""

import struct
from functools import lru_cache
from typing import Final

import msgspec

from unpoison.brokers.rabbitmq.table import Entry, Table, join, split

_FIELDS = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_FIXED: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_DROPPED: Final = frozenset(("headers", "delivery_mode", "message_id", "expiration", "user_id"))
_HEADERS, _MODE, _ID = 0x2000, 0x1000, 0x0080
_PERSISTENT = b"\x02"


class Properties(msgspec.Struct, frozen=True):
    """The fields we read, and the others as they came."""

    id: str | None = None
    headers: Table = Table()
    others: tuple[tuple[str, bytes], ...] = ()


NONE = Properties()


def read(data: bytes) -> Properties:
    (flags,) = struct.unpack_from(">H", data)
    at, id_, headers = 2, None, Table()
    others: list[tuple[str, bytes]] = []
    for name in _present(flags):
        end = at + _length(name, data, at)
        if name == "headers":
            headers = split(data[at + 4 : end])
        elif name == "message_id":
            id_ = data[at + 1 : end].decode("utf-8", "replace")
        elif name not in _DROPPED:
            others.append((name, data[at:end]))
        at = end
    return Properties(id_, headers, tuple(others))


@lru_cache(maxsize=256)
def _present(flags: int) -> tuple[str, ...]:
    return tuple(name for position, name in enumerate(_FIELDS) if flags & (0x8000 >> position))


def _length(name: str, data: bytes, at: int) -> int:
    if name in _FIXED:
        return _FIXED[name]
    return int(4 + struct.unpack_from(">I", data, at)[0]) if name == "headers" else 1 + data[at]


def write(id_: str | None, entries: list[Entry], like: Properties = NONE) -> bytes:
    """Properties of a persistent message: these headers, this id, and the other fields of `like`."""
    fields = dict(like.others)
    fields["delivery_mode"] = _PERSISTENT
    if entries or like.headers.rest:
        fields["headers"] = join(entries, like.headers.rest)
    if id_ is not None:
        data = id_.encode()
        fields["message_id"] = bytes((len(data),)) + data
    flags, values = 0, []
    for position, name in enumerate(_FIELDS):
        if name in fields:
            flags |= 0x8000 >> position
            values.append(fields[name])
    return struct.pack(">H", flags) + b"".join(values)
