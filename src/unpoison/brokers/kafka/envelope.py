"""Which records are stored for messages, what is in their headers, and how are headers of any origin read?

Ours begin with `x-unpoison-`; `x-delivery-attempts` is there for other tools. A copy has the sender's key, headers and body
bit for bit, whatever they are, and a stamp: where the original is, and when it was written. Counters without a stamp were
written by another program and count nothing.

An operator that sends a letter again may be paused between its claim and its copy, or a server may delay the copy. Then it is
taken for dead, and another operator finishes the claim. So that the copy cannot come later and be a second one, that operator
first writes a cancellation into the partition where the copy belongs. The order of the log decides, for consumers and operators
alike: of the copy and the cancellation of one claim, the first one counts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from confluent_kafka import KafkaError

from unpoison.brokers.kafka.names import HELD, SUSPECTS, Names, tier
from unpoison.model.message import NO_HEADERS, UNTRIED, Counters, Delivery, Native, Outgoing
from unpoison.port.broker import Kept
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
CLAIM, CANCELLED = "x-unpoison-claim", "x-unpoison-stop"
"""On a copy: its claim, and where the partition ended before that. On a cancellation: the claim."""
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


def original_position(stamp: str) -> dict[str, Any]:
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


def copy_headers(
    record: Record, seen: Envelope, counters: Counters, extra: Mapping[str, Any] = {}
) -> list[tuple[str, bytes | None]]:
    """The headers of a copy: the sender's as they are, and ours."""
    return [*sender_headers(record), *stamp_headers(record, seen), *counter_headers(counters), *_pairs(extra)]


def stamp_headers(record: Record, seen: Envelope) -> list[tuple[str, bytes | None]]:
    """Which message it is a copy of."""
    kind, written = record.timestamp()
    clock = {WRITTEN: header(record, WRITTEN) or written, CLOCK: header(record, CLOCK) or kind}
    return _pairs({ID: seen.id, STAMP: seen.stamp, **clock})


def counter_headers(counters: Counters) -> list[tuple[str, bytes | None]]:
    known = counters_text(counters)
    return _pairs({ATTEMPTS: counters.attempts, **({COUNTERS: known} if known else {})})


def _pairs(headers: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    return [(name, str(value).encode()) for name, value in headers.items()]


def published_record(names: Names, message: Outgoing, now: float) -> NewRecord:
    headers: list[tuple[str, bytes | None]] = [(ID, message.id.encode())]
    headers += [(name, value.encode()) for name, value in message.headers.items()]
    key = None if message.key is None else message.key.encode()
    if message.delay <= 0:
        return NewRecord(names.topic, message.body, key, headers)
    headers.append((DUE, f"{now + message.delay:.3f}".encode()))
    return NewRecord(names.retry, message.body, key, headers, tier(message.delay))


def retry_record(names: Names, item: Kept, record: Record, now: float) -> NewRecord:
    """A retry, in the group's own topic: other groups have nothing to do with it."""
    extra = {DUE: f"{now + item.after:.3f}"} if item.after > 0 else {}
    headers = copy_headers(record, read_envelope_safely(record, names.topic), item.counters, extra)
    # A suspect that must wait is fetched when it is due, and then set aside into the partition of the suspects.
    partition = SUSPECTS if item.counters.alone and item.after <= 0 else tier(item.after)
    return NewRecord(names.retry, record.value(), record.key(), headers, partition)


def settled_note(names: Names, ref: str) -> NewRecord:
    """The note of a consumer that has settled a message whose partition had gone elsewhere."""
    return NewRecord(names.retry, None, None, [(REF, ref.encode())], HELD)


def with_claim(copy: NewRecord, nonce: str, end: int) -> NewRecord:
    """The copy of a letter that is sent again, with its claim."""
    return msgspec.structs.replace(copy, headers=[*copy.headers, (CLAIM, f"{nonce}/{end}".encode())])


def cancellation(topic: str, partition: int, nonce: str) -> NewRecord:
    return NewRecord(topic, None, None, [(CANCELLED, nonce.encode())], partition)


def claim_of(record: Record) -> tuple[str, int]:
    """The claim by which a copy was sent, and where the partition ended before; an empty one if it is no such copy."""
    nonce, _, end = (header(record, CLAIM) or "").rpartition("/")
    return (nonce, int(end)) if is_number(end) else ("", 0)  # else another program's header of that name


def valid_claims(records: Iterable[Record]) -> set[str]:
    """The claims whose copy comes before any cancellation."""
    copies: set[str] = set()
    cancelled: set[str] = set()
    for record in records:
        nonce, _ = claim_of(record)
        if nonce and nonce not in cancelled:
            copies.add(nonce)
        elif of := header(record, CANCELLED):
            cancelled.add(of)
    return copies


_CLOCKS = ("none", "create", "log_append")
"""The types of timestamps, by their numbers in the client."""


def native(delivery: Delivery) -> Native:
    """A copy tells where its original is."""
    record: Record = delivery.receipt.record
    is_copy = STAMP in [name for name, _ in headers_of(record)]
    place: dict[str, Any] = original_position(read_envelope_safely(record).stamp) if is_copy else {}
    kind = int(header(record, CLOCK) or 0) if place else record.timestamp()[0]
    if not place:
        names = ("topic", "partition", "offset", "timestamp")
        place = dict(zip(names, (record.topic(), record.partition(), record.offset(), record.timestamp()[1]), strict=True))
    at = {"timestamp": place["timestamp"] / 1000 if kind else None, "timestamp_type": _CLOCKS[kind]}
    return Native(record.key(), tuple(sender_headers(record)), place | at)
