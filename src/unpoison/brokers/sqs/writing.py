"""Store messages, know that they are stored, and have them wait.

Ten at a time and one mebibyte at most: SQS answers for each whether it is stored. SQS lets a message wait for 15 minutes at most.
One that is to wait longer carries what is left (`wait`), and the consumer that receives it then sends it on. How long it has
waited is told by the server's own clock: when it was sent, and when it was first received.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from unpoison.brokers.sqs import envelope as bodies
from unpoison.brokers.sqs import envelope as envelopes
from unpoison.brokers.sqs.connection import AT_ONCE, Connection, Denied, NoQueue, Refused
from unpoison.brokers.sqs.envelope import GROUP, RECEIVED_AT, SENT_AT, TRACE, Envelope, Raw
from unpoison.errors import BrokerUnavailable, PayloadError

LIMIT = 1_048_576
"""Bytes of one message with its attributes, and of one request (256 KiB before August 2025)."""

RESERVED = 4_096
"""Bytes that a new message leaves free: its retries and its dead letter have more to tell."""

NOT_SENT = "not sent"
LONGEST_DELAY = 900
LONGEST_GROUP = 128


class Copy(NamedTuple):
    """A message to be stored."""

    queue: str
    """The URL of the queue."""
    entry: dict[str, Any]
    size: int
    letter_id: str | None = None
    """Of a copy that is a dead letter and says so."""


class No(NamedTuple):
    """Why a message was not stored."""

    code: str
    text: str
    error: BrokerUnavailable | None = None
    """What the whole request ended with, if it did."""
    is_certain: bool = True
    """Whether it is not stored for certain. What got no answer, or one that SQS itself takes the blame for, may be."""


def copy(
    queue: str,
    body: bytes,
    envelope: Envelope,
    raw: Raw | None = None,
    *,
    delay: float = 0.0,
    group: str | None = None,
    once: str | None = None,
    limit: int = LIMIT,
) -> Copy:
    """A message for this queue. `group` and `once` are for FIFO: whose order it keeps, and by what a second one is recognised."""
    attributes = envelopes.attributes(envelope, raw)
    text, encoding = bodies.encoded(body, limit - RESERVED - size_of(attributes))
    wait = delay if delay > LONGEST_DELAY else 0.0
    if encoding is not None or wait:
        attributes = envelopes.attributes(msgspec.structs.replace(envelope, encoding=encoding, wait=wait), raw)
    return _made(queue, text, attributes, raw, delay, group, once)


def unchanged(queue: str, raw: Raw, *, delay: float = 0.0, group: str | None = None, once: str | None = None) -> Copy:
    """A message as it is, for one that has no room for anything of ours: what its queue took once, others take too."""
    return _made(queue, raw["Body"], envelopes.sent(raw), raw, delay, group, once)


def _made(
    queue: str, text: str, attributes: dict[str, Any], raw: Raw | None, delay: float, group: str | None, once: str | None
) -> Copy:
    entry: dict[str, Any] = {"MessageBody": text, "MessageAttributes": attributes}
    if delay > 0:
        entry["DelaySeconds"] = min(math.ceil(delay), LONGEST_DELAY)
    if group is not None:
        entry[GROUP] = group
    if once is not None:
        entry["MessageDeduplicationId"] = once
    trace = None if raw is None else raw["Attributes"].get(TRACE)
    if trace is not None:
        entry["MessageSystemAttributes"] = {TRACE: {"DataType": "String", "StringValue": trace}}
    return Copy(queue, entry, _bytes(text) + size_of(attributes))


def size_as_it_is(raw: Raw) -> int:
    """Bytes of a message that was received."""
    return _bytes(raw["Body"]) + size_of(raw.get("MessageAttributes") or {})


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def size_of(attributes: Mapping[str, Any]) -> int:
    """What attributes count towards the size of a message."""
    return sum(
        len(name.encode())
        + len(value["DataType"])
        + len(value.get("StringValue", "").encode())
        + len(value.get("BinaryValue", b""))
        for name, value in attributes.items()
    )


def check_size(id_: str, made: Copy, limit: int = LIMIT) -> None:
    """Refuse a new message that is too large, before anything is sent."""
    most = limit - RESERVED
    if made.size > most:
        raise PayloadError(
            f"Message {id_!r} has {made.size:,} bytes as it would be sent, with its attributes; this queue takes {limit:,} at "
            f"most, of which unpoison keeps {RESERVED:,} for what a retry or a dead letter has to tell. Store large data "
            f"elsewhere and send where it is."
        )


def remaining(raw: Raw, envelope: Envelope) -> float:
    """Seconds that a message still has to wait, by the server's clock."""
    if not envelope.wait:
        return 0.0
    told = raw["Attributes"]
    return envelope.wait - max(0, int(told.get(RECEIVED_AT, 0)) - int(told.get(SENT_AT, 0))) / 1000


def store(connection: Connection, copies: Sequence[Copy]) -> dict[int, No]:
    """Store these; returns once it is known of each whether it is stored, with why some are not. Raises if none is, for want of
    an answer or a right."""
    answers = connection.all_of([partial(_send, connection, copies, numbers) for numbers in _requests(copies)])
    refused = {number: no for answer in answers for number, no in answer.items()}
    errors = [no.error for no in refused.values() if no.error is not None]
    if errors and len(errors) == len(copies):
        raise errors[0]
    return refused


def store_in_order(connection: Connection, copies: Sequence[Copy]) -> dict[int, No]:
    """Store these one request after the other; returns why some are not stored. Never raises."""
    refused: dict[int, No] = {}
    for numbers in _requests(copies):
        if refused:  # what comes after would overtake what was refused
            why = next(iter(refused.values())).text
            refused.update(dict.fromkeys(numbers, No(NOT_SENT, f"It was not sent, since one before it was not stored: {why}")))
        else:
            refused = _send(connection, copies, numbers)
    return refused


def _requests(copies: Sequence[Copy]) -> Iterator[list[int]]:
    """Which go into one request: of one queue, ten at most, and no more bytes than it may have."""
    by_queue: dict[str, list[int]] = {}
    for number, each in enumerate(copies):
        by_queue.setdefault(each.queue, []).append(number)
    for numbers in by_queue.values():
        yield from _parts(copies, numbers)


def _parts(copies: Sequence[Copy], numbers: Iterable[int]) -> Iterator[list[int]]:
    part: list[int] = []
    size = 0
    for number in numbers:
        if part and (len(part) == AT_ONCE or size + copies[number].size > LIMIT):
            yield part
            part, size = [], 0
        part.append(number)
        size += copies[number].size
    if part:
        yield part


def _send(connection: Connection, copies: Sequence[Copy], numbers: Sequence[int]) -> dict[int, No]:
    """Why some of these are not stored. Trouble with this request does not hide what others have stored."""
    entries = [{"Id": str(number), **copies[number].entry} for number in numbers]
    try:
        answer = connection.ask("send_message_batch", QueueUrl=copies[numbers[0]].queue, Entries=entries)
    except BrokerUnavailable as error:
        no = No("all of one request", str(error).rstrip("."), error, isinstance(error, Refused | NoQueue | Denied))
        return dict.fromkeys(numbers, no)
    return {int(each["Id"]): _no(each) for each in answer.get("Failed", ())}


def _no(entry: Mapping[str, Any]) -> No:
    return No(entry["Code"], entry.get("Message", "no reason given"), is_certain=bool(entry.get("SenderFault")))


def group_of(key: str | None, otherwise: str | None) -> str | None:
    """A key as the name of a message group, if SQS takes it as one."""
    fits = key and len(key) <= LONGEST_GROUP and key.isascii() and key.isprintable() and " " not in key
    return key if fits else otherwise
