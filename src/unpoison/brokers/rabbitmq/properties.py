"""Read and write what stands beside a message's body: its properties, kept as bytes, field by field.

Copies keep what the sender set, but for three fields that would do harm on them: an expiration (the copy would vanish, so it is
only noted), the user id (the server refuses one that is not ours) and the delivery mode (a copy is always persistent).
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from unpoison.brokers.rabbitmq.header_table import Header, HeaderTable, join, split
from unpoison.model.message import as_text

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
_FLAGS: Final = tuple((0x8000 >> position, name) for position, name in enumerate(_FIELDS))
PLAIN_FIELDS: Final = tuple(name for name in _FIELDS if name != "headers")
_FIXED: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_DROPPED: Final = frozenset(("delivery_mode", "user_id"))
_HEADERS, _MODE, _ID = 0x2000, 0x1000, 0x0080
_PERSISTENT = b"\x02"
MOST = 2**32 - 1
"""Milliseconds after which a message can expire."""


class Properties(msgspec.Struct, frozen=True):
    """The fields we read, and the others as they came."""

    id: str | None = None
    headers: HeaderTable = HeaderTable()
    expiration: str | None = None
    others: tuple[tuple[str, bytes], ...] = ()


NONE = Properties()


def read(data: bytes) -> Properties:
    id_, headers, expiration = None, HeaderTable(), None
    others: list[tuple[str, bytes]] = []
    for name, raw in fields(data):
        if name == "headers":
            headers = split(raw[4:])
        elif name == "message_id":
            id_ = as_text(raw[1:])
        elif name == "expiration":
            expiration = as_text(raw[1:])
        elif name not in _DROPPED:
            others.append((name, raw))
    return Properties(id_, headers, expiration, tuple(others))


def fields(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The fields that are set, each as it came: a text has its length before it."""
    (flags,) = struct.unpack_from(">H", data)
    at = 2
    for name in _present(flags):
        end = at + _length(name, data, at)
        yield name, data[at:end]
        at = end


def all_fields(data: bytes) -> tuple[dict[str, str | int | None], HeaderTable]:
    """All fields as text or numbers, with None for those that are not set, and the headers."""
    found: dict[str, str | int | None] = dict.fromkeys(PLAIN_FIELDS)
    headers = HeaderTable()
    for name, raw in fields(data):
        if name == "headers":
            headers = split(raw[4:])
        else:
            found[name] = int.from_bytes(raw, "big") if name in _FIXED else as_text(raw[1:])
    return found, headers


@lru_cache(maxsize=256)
def _present(flags: int) -> tuple[str, ...]:
    return tuple(name for flag, name in _FLAGS if flags & flag)


def _length(name: str, data: bytes, at: int) -> int:
    if name in _FIXED:
        return _FIXED[name]
    return int(4 + struct.unpack_from(">I", data, at)[0]) if name == "headers" else 1 + data[at]


def expiring(seconds: float, entries: Sequence[Header] = ()) -> bytes:
    """Properties of a message that the server deletes after so long."""
    return write(None, list(entries), Properties(others=(("expiration", _short(str(min(MOST, int(seconds * 1000))))),)))


def of_another_user() -> bytes:
    """Properties of a message that the server refuses, once it has found that we may write where it goes."""
    return write(None, [], Properties(others=(("user_id", _short("another user")),)))


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def write(id_: str | None, entries: list[Header], like: Properties = NONE) -> bytes:
    """Properties of a persistent message: these headers, this id, and the other fields of `like`."""
    fields = dict(like.others)
    fields["delivery_mode"] = _PERSISTENT
    if entries or like.headers.rest:
        fields["headers"] = join(entries, like.headers.rest)
    if id_ is not None:
        fields["message_id"] = _short(id_)
    flags, values = 0, []
    for flag, name in _FLAGS:
        if name in fields:
            flags |= flag
            values.append(fields[name])
    return struct.pack(">H", flags) + b"".join(values)
