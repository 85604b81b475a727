"""What travels with a message in its headers, and how are headers of any origin read?

Ours begin with `x-unpoison-`; `x-delivery-attempts` is there for other tools. A copy has the sender's key, headers and body
bit for bit, whatever they are, and says where the original stood and when that was written.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from unpoison.brokers.kafka.record import Pairs, Record
from unpoison.message import NO_HEADERS, UNTRIED, Counters
from unpoison.reading import as_text, read_one
from unpoison.stored import UNREADABLE, counters_text, read_counters

ID, STAMP, COUNTERS, ATTEMPTS = "x-unpoison-id", "x-unpoison-stamp", "x-unpoison-counters", "x-delivery-attempts"
DUE, WRITTEN, HOLDER, REF = "x-unpoison-due", "x-unpoison-timestamp", "x-unpoison-holder", "x-unpoison-ref"
CLOCK = "x-unpoison-timestamp-type"
OURS = "x-unpoison-"


class Copy(msgspec.Struct, frozen=True):
    """A record to be stored. Without a partition its key decides, as everywhere in Kafka."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Pairs = ()
    partition: int = -1


class Seen(msgspec.Struct, frozen=True):
    """What a record says about the message in it."""

    id: str
    stamp: str
    key: str | None
    headers: Mapping[str, str]
    counters: Counters


def pairs(record: Record) -> Pairs:
    """The headers as they are; none if the client cannot read them."""
    try:
        return record.headers() or ()
    except UnicodeDecodeError:
        return ()


def stamp(record: Record) -> str:
    """Where it stands, and since when: a topic that was deleted and made anew counts from 0 again."""
    return f"{record.topic()}/{record.partition()}/{record.offset()}@{record.timestamp()[1]}"


def place(stamp: str) -> dict[str, str | int]:
    """Where the original stood, from its stamp; nothing if that is somebody else's header of that name."""
    where, _, at = stamp.rpartition("@")
    topic, _, rest = where.rpartition("/")
    topic, _, partition = topic.rpartition("/")
    if not all(map(is_number, (partition, rest, at))):
        return {}
    return {"topic": topic, "partition": int(partition), "offset": int(rest), "timestamp": int(at)}


def look_safely(record: Record) -> Seen:
    """As `look`; of a record that cannot be read, only its place is known."""

    def bare(record: Record, _: Exception) -> Seen:
        where = stamp(record)
        return Seen(where.partition("@")[0], where, None, NO_HEADERS, UNTRIED)

    return read_one(record, look, bare)


def look(record: Record) -> Seen:
    """What the headers and the key say. May raise."""
    id_ = where = None
    counters, headers = UNTRIED, {}
    for name, value in pairs(record):
        if name == ID:
            id_ = text(value)
        elif name == STAMP:
            where = text(value)
        elif name == COUNTERS:
            counters = _counters(value)
        elif not name.startswith(OURS) and name != ATTEMPTS:
            headers[name] = text(value)
    key = record.key()
    where = where or stamp(record)
    return Seen(id_ or where.partition("@")[0], where, None if key is None else text(key), headers or NO_HEADERS, counters)


def text(value: bytes | str | None) -> str:
    return value if isinstance(value, str) else as_text(value or b"")


def _counters(value: bytes | None) -> Counters:
    try:
        return read_counters(text(value))
    except UNREADABLE:
        return UNTRIED  # somebody else's header of that name


def is_number(text: str) -> bool:
    """Whether it is an offset or the like. Unlike `str.isdigit`, not "²", of which `int` makes nothing."""
    return text.isascii() and text.isdecimal() and len(text) < 19


def field(record: Record, name: str) -> str | None:
    return next((text(value) for found, value in pairs(record) if found == name), None)


def due(record: Record) -> float:
    """When its time comes, by the server's clock; 0 if it says nothing that makes sense."""
    try:
        moment = float(field(record, DUE) or 0)
    except ValueError:
        return 0.0  # somebody else's header of that name
    return moment if math.isfinite(moment) else 0.0


def sent(id_: str, headers: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
    """The headers of a message that is published."""
    return [(ID, id_.encode()), *((name, value.encode()) for name, value in headers.items())]


def theirs(record: Record) -> list[tuple[str, bytes | None]]:
    """The sender's own headers, as they came."""
    return [(name, value) for name, value in pairs(record) if not name.startswith(OURS) and name != ATTEMPTS]


def copied(record: Record, seen: Seen, counters: Counters, extra: Mapping[str, Any] = {}) -> list[tuple[str, bytes | None]]:
    """The headers of a copy: the sender's as they are, ours anew."""
    kind, written = record.timestamp()
    ours = {
        ID: seen.id,
        STAMP: seen.stamp,
        WRITTEN: field(record, WRITTEN) or written,
        CLOCK: field(record, CLOCK) or kind,
        ATTEMPTS: counters.attempts,
        **({COUNTERS: known} if (known := counters_text(counters)) else {}),
        **extra,
    }
    return [*theirs(record), *((name, str(value).encode()) for name, value in ours.items())]
