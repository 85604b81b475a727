"""What travels with a message in its headers, and how are headers of any origin read?

Ours begin with `x-unpoison-`; `x-delivery-attempts` is there for other tools. A copy has the sender's key, headers and body
bit for bit, whatever they are, and a stamp: where the original is, and when it was written. Counters without a stamp were
written by another program and count nothing.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from confluent_kafka import KafkaError

from unpoison.model.message import NO_HEADERS, UNTRIED, Counters, Delivery, Native
from unpoison.port.reading import as_text, read_one
from unpoison.port.serialization import (
    ATTEMPTS,
    COUNTERS,
    LETTER,
    LETTER_ID,
    STAMP,
    counters_or_untried,
    counters_text,
    restarted,
)

Headers = Sequence[tuple[str, bytes | None]]


class Record(Protocol):
    """A record of a topic that was read, or an error in the place of one. The client's own class types all of it as optional."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Headers | None: ...
    def error(self) -> KafkaError | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...


ID = "x-unpoison-id"
DUE, WRITTEN, HOLDER, REF = "x-unpoison-due", "x-unpoison-timestamp", "x-unpoison-holder", "x-unpoison-ref"
CLOCK = "x-unpoison-timestamp-type"
BODY_AT = "x-unpoison-body-at"
"""On a dead letter without a body: where that is."""
OURS = "x-unpoison-"


class NewRecord(msgspec.Struct, frozen=True):
    """A record to be stored. Without a partition its key decides, as everywhere in Kafka."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int = -1


class Envelope(msgspec.Struct, frozen=True):
    """What a record says about the message in it."""

    id: str
    stamp: str
    key: str | None
    headers: Mapping[str, str]
    counters: Counters
    is_moved_back: bool = False
    """Whether it is a dead letter that another tool has put into the source again."""


def headers_of(record: Record) -> Headers:
    """The headers as they are; none if the client cannot read them."""
    try:
        return record.headers() or ()
    except UnicodeDecodeError:
        return ()


def stamp_of(record: Record) -> str:
    """Where it is, and since when: a topic that was deleted and created again counts from 0 again."""
    return f"{record.topic()}/{record.partition()}/{record.offset()}@{record.timestamp()[1]}"


def original_position(stamp: str) -> dict[str, str | int]:
    """Where the original is, from its stamp; empty if that is another program's header of that name."""
    where, _, at = stamp.rpartition("@")
    topic, _, rest = where.rpartition("/")
    topic, _, partition = topic.rpartition("/")
    if not all(map(is_number, (partition, rest, at))):
        return {}
    return {"topic": topic, "partition": int(partition), "offset": int(rest), "timestamp": int(at)}


def read_envelope_safely(record: Record, source: str = "") -> Envelope:
    """As `read_envelope`; of a record that cannot be read, only its place is known."""

    def bare(record: Record, _: Exception) -> Envelope:
        where = stamp_of(record)
        return Envelope(where.partition("@")[0], where, None, NO_HEADERS, UNTRIED)

    return read_one(record, partial(read_envelope, source=source), bare)


def read_envelope(record: Record, source: str = "") -> Envelope:
    """What the headers and the key say. In the topic `source` a dead letter is one that was moved back. May raise."""
    id_ = where = letter = None
    counters, headers = UNTRIED, {}
    for name, value in headers_of(record):
        if name == ID:
            id_ = text(value)
        elif name == STAMP:
            where = text(value)
        elif name == COUNTERS:
            counters = counters_or_untried(text(value))
        elif name == LETTER_ID:
            letter = value
        elif not name.startswith(OURS):
            headers[name] = text(value)
    if where is None:
        counters = UNTRIED
    elif ATTEMPTS in headers:
        headers = {name: text(value) for name, value in sender_headers(record)}
    is_moved_back = bool(letter) and record.topic() == source
    if is_moved_back:
        counters = _restarted(record, counters)
    # A letter that was moved back is another message than the one it was: it may have been put there twice.
    where = where if where and not is_moved_back else stamp_of(record)
    key = None if record.key() is None else text(record.key())
    return Envelope(id_ or where.partition("@")[0], where, key, headers or NO_HEADERS, counters, is_moved_back)


def _restarted(record: Record, counters: Counters) -> Counters:
    if record.value() is None and (place := header(record, BODY_AT)):
        raise ValueError(
            f"another tool has moved a dead letter here that was too large for the DLQ and has no body: that is at {place}. "
            f"The letter is still in the DLQ: unpoison dlq replay sends it with its body"
        )
    return restarted(header(record, LETTER), counters.replays)


def sender_headers(record: Record) -> list[tuple[str, bytes | None]]:
    """The sender's own headers, as they came. One may have the name of ours: on a copy the last of that name is ours."""
    found = headers_of(record)
    foreign = [pair for pair in found if not pair[0].startswith(OURS)]
    if any(name == STAMP for name, _ in found):
        last = max((number for number, (name, _) in enumerate(foreign) if name == ATTEMPTS), default=len(foreign))
        del foreign[last : last + 1]
    return foreign


def text(value: bytes | str | None) -> str:
    return value if isinstance(value, str) else as_text(value or b"")


def is_number(text: str) -> bool:
    """Whether it is an offset or the like. Unlike `str.isdigit`, not "²", of which `int` makes nothing."""
    return text.isascii() and text.isdecimal() and len(text) < 19


def header(record: Record, name: str) -> str | None:
    return next((text(value) for found, value in headers_of(record) if found == name), None)


def due_at(record: Record) -> float:
    """When it is due, by the server's clock; 0 if its header makes no sense."""
    try:
        moment = float(header(record, DUE) or 0)
    except ValueError:
        return 0.0  # another program's header of that name
    return moment if math.isfinite(moment) else 0.0


def publish_headers(id_: str, headers: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
    """The headers of a message that is published."""
    return [(ID, id_.encode()), *((name, value.encode()) for name, value in headers.items())]


def copy_headers(
    record: Record, seen: Envelope, counters: Counters, extra: Mapping[str, Any] = {}
) -> list[tuple[str, bytes | None]]:
    """The headers of a copy: the sender's as they are, and ours."""
    kind, written = record.timestamp()
    ours = {
        ID: seen.id,
        STAMP: seen.stamp,
        WRITTEN: header(record, WRITTEN) or written,
        CLOCK: header(record, CLOCK) or kind,
        ATTEMPTS: counters.attempts,
        **({COUNTERS: known} if (known := counters_text(counters)) else {}),
        **extra,
    }
    return [*sender_headers(record), *((name, str(value).encode()) for name, value in ours.items())]


_CLOCKS = ("none", "create", "log_append")
"""The types of timestamps, by their numbers in the client."""


def native(delivery: Delivery) -> Native:
    record: Record = delivery.receipt.record
    is_copy = STAMP in [name for name, _ in headers_of(record)]
    place = original_position(read_envelope_safely(record).stamp) if is_copy else {}
    return Native(record.key(), tuple(sender_headers(record)), _of_copy(record, place) if place else _of_original(record))


def _of_original(record: Record) -> dict[str, Any]:
    kind, written = record.timestamp()
    return {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": written / 1000 if kind else None,
        "timestamp_type": _CLOCKS[kind],
    }


def _of_copy(record: Record, place: dict[str, Any]) -> dict[str, Any]:
    kind = int(header(record, CLOCK) or 0)
    return {**place, "timestamp": place["timestamp"] / 1000 if kind else None, "timestamp_type": _CLOCKS[kind]}
