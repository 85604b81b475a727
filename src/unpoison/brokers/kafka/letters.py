"""How is a dead letter kept as a record, so that every tool can read it?

It has the key, body and headers of its message. What is known about the failure is JSON in the header `x-unpoison-letter`, with
the gist in headers of its own. Letters that Spring Kafka or Kafka Connect wrote are read too.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.envelope import BODY_AT, Envelope, NewRecord, Record, headers_of, is_number
from unpoison.brokers.kafka.names import Names
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message
from unpoison.port.serialization import GROUP, LETTER, LETTER_ID, foreign_letter, letter_headers, letter_of

WHOLE, TRIMMED, REFERRING = 0, 1, 2
"""How much of a letter is written: all; less about the failure; and, at last, only where its body is."""
MAX_ABOUT_FAILURE = (64 * 1024, 2_000, 2_000)
"""Bytes about the failure, for each of these."""

SPRING, CONNECT = "kafka_dlt-", "__connect.errors."
NUMBERS = (4, 8)
"""Spring writes numbers as bytes: an int or a long."""
UNKNOWN = "kafka.Unknown"


def letter_record(names: Names, letter: DeadLetter, record: Record, how: int = WHOLE) -> NewRecord:
    seen = envelope.read_envelope_safely(record, names.topic)
    original = {**envelope.original_position(seen.stamp), "group": names.group_name, **letter.original}
    letter = msgspec.structs.replace(letter, original=original)
    extra: dict[str, Any] = {
        LETTER_ID: letter_identity(names.group_name, seen, letter.replays),
        GROUP: names.group_name,
        **letter_headers(letter, MAX_ABOUT_FAILURE[how]),
    }
    if how == REFERRING:
        extra[BODY_AT] = f"{record.topic()}/{record.partition()}/{record.offset()}"
    headers = envelope.copy_headers(record, seen, Counters(attempts=letter.attempts, replays=letter.replays), extra)
    if how == REFERRING:
        headers = [(name, value) for name, value in headers if name.startswith(envelope.OURS)]
    return NewRecord(names.dlq, None if how == REFERRING else record.value(), record.key(), headers)


def letter_identity(group: str, seen: Envelope, replays: int) -> str:
    """Equal for two letters of one message: a crash after the first one was stored, and before its message was done."""
    text = f"{group}\0{seen.stamp}\0{replays}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def read_letter(source: str, id_: str, state: str, record: Record, original: Record | None) -> DeadLetter:
    """A letter. `original` has the body and the sender's headers: the letter itself, or the record that it refers to; None if
    that was deleted."""
    seen = envelope.read_envelope_safely(record)
    sent = seen.headers if original is None else envelope.read_envelope_safely(original).headers
    body = b"" if original is None else original.value() or b""
    message = Message(seen.id, source, body, seen.key, sent, original is not None and original.value() is None)
    return letter_of(envelope.header(record, LETTER), message, lambda: _of_others(message, record), id_=id_, state=state)


def body_position(record: Record) -> tuple[tuple[str, int], int] | None:
    """Topic and partition, and offset, of the message that a letter refers to; None if it has its body itself."""
    topic, _, rest = (envelope.header(record, BODY_AT) or "").partition("/")
    partition, _, offset = rest.partition("/")
    if record.value() is not None or not (is_number(partition) and is_number(offset)):
        return None
    return (topic, int(partition)), int(offset)


def _of_others(message: Message, record: Record) -> DeadLetter:
    """A letter that another program wrote."""
    headers = {name: value or b"" for name, value in headers_of(record)}
    if any(name.startswith(SPRING) for name in headers):
        return _of_spring(message, record, headers)
    if any(name.startswith(CONNECT) for name in headers):
        return _of_connect(message, record, headers)
    return _foreign(message, record, "something else than unpoison put it here", UNKNOWN)


def _of_spring(message: Message, record: Record, headers: Mapping[str, bytes]) -> DeadLetter:
    found = {name.removeprefix(SPRING): value for name, value in headers.items() if name.startswith(SPRING)}
    original: dict[str, str | int] = {
        "topic": _text(found.get("original-topic")),
        "partition": _number(found.get("original-partition")),
        "offset": _number(found.get("original-offset")),
        "group": _text(found.get("original-consumer-group")),
    }
    error = _text(found.get("exception-cause-fqcn")) or _text(found.get("exception-fqcn")) or UNKNOWN
    rule = f"Spring Kafka dead-lettered it from topic {original['topic']!r}"
    text, trace = _text(found.get("exception-message")), _text(found.get("exception-stacktrace"))
    return _foreign(message, record, rule, error, text, trace, original)


def _of_connect(message: Message, record: Record, headers: Mapping[str, bytes]) -> DeadLetter:
    found = {name.removeprefix(CONNECT): _text(value) for name, value in headers.items() if name.startswith(CONNECT)}
    original: dict[str, str | int] = {
        "topic": found.get("topic", ""),
        "partition": _digits(found.get("partition")),
        "offset": _digits(found.get("offset")),
        "connector": found.get("connector.name", ""),
        "stage": found.get("stage", ""),
    }
    rule = f"Kafka Connect dead-lettered it in connector {original['connector']!r}, stage {original['stage']!r}"
    error = found.get("exception.class.name") or UNKNOWN
    text, trace = found.get("exception.message", ""), found.get("exception.stacktrace", "")
    return _foreign(message, record, rule, error, text, trace, original)


def _foreign(
    message: Message,
    record: Record,
    rule: str,
    error_type: str,
    error: str = "",
    traceback: str = "",
    original: Mapping[str, str | int] = {},
) -> DeadLetter:
    return foreign_letter(
        message,
        rule,
        error_type,
        record.timestamp()[1] / 1000,
        error=error[:2_000],
        traceback=traceback[-8_000:],
        alike=f"{rule}\0{error_type}",
        original={name: value for name, value in original.items() if value not in ("", -1)},
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _number(value: bytes | None) -> int:
    return int.from_bytes(value, "big", signed=True) if value is not None and len(value) in NUMBERS else -1


def _digits(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else -1
