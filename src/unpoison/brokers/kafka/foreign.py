"""What do dead letters say that other systems wrote? Spring Kafka and Kafka Connect tell it in headers of their own."""

import hashlib
from collections.abc import Mapping

from unpoison.brokers.kafka.envelope import pairs
from unpoison.brokers.kafka.record import Record
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.failure import ErrorClassification
from unpoison.model.message import Message

SPRING, CONNECT = "kafka_dlt-", "__connect.errors."
NUMBERS = (4, 8)
"""Spring writes numbers as bytes: an int or a long."""


def read(message: Message, record: Record) -> DeadLetter:
    headers = {name: value or b"" for name, value in pairs(record)}
    if any(name.startswith(SPRING) for name in headers):
        return _spring(message, record, headers)
    if any(name.startswith(CONNECT) for name in headers):
        return _connect(message, record, headers)
    rule = "something else than unpoison put it here"
    return _letter(message, record, rule, "kafka.Unknown", rule)


def _spring(message: Message, record: Record, headers: Mapping[str, bytes]) -> DeadLetter:
    found = {name.removeprefix(SPRING): value for name, value in headers.items() if name.startswith(SPRING)}
    original: dict[str, str | int] = {
        "topic": _text(found.get("original-topic")),
        "partition": _number(found.get("original-partition")),
        "offset": _number(found.get("original-offset")),
        "group": _text(found.get("original-consumer-group")),
    }
    error = _text(found.get("exception-cause-fqcn")) or _text(found.get("exception-fqcn")) or "kafka.Unknown"
    rule = f"Spring Kafka dead-lettered it from topic {original['topic']!r}"
    text, trace = _text(found.get("exception-message")), _text(found.get("exception-stacktrace"))
    return _letter(message, record, rule, error, text, trace, original)


def _connect(message: Message, record: Record, headers: Mapping[str, bytes]) -> DeadLetter:
    found = {name.removeprefix(CONNECT): _text(value) for name, value in headers.items() if name.startswith(CONNECT)}
    original: dict[str, str | int] = {
        "topic": found.get("topic", ""),
        "partition": _digits(found.get("partition")),
        "offset": _digits(found.get("offset")),
        "connector": found.get("connector.name", ""),
        "stage": found.get("stage", ""),
    }
    rule = f"Kafka Connect dead-lettered it in connector {original['connector']!r}, stage {original['stage']!r}"
    error = found.get("exception.class.name") or "kafka.Unknown"
    return _letter(
        message, record, rule, error, found.get("exception.message", ""), found.get("exception.stacktrace", ""), original
    )


def _letter(
    message: Message,
    record: Record,
    rule: str,
    error_type: str,
    error: str,
    traceback: str = "",
    original: Mapping[str, str | int] = {},
) -> DeadLetter:
    at = record.timestamp()[1] / 1000
    return DeadLetter(
        message=message,
        attempts=0,
        classification=str(ErrorClassification.UNKNOWN),
        rule=rule,
        reason=rule,
        error_type=error_type,
        error=error[:2_000],
        traceback=traceback[-8_000:],
        fingerprint=hashlib.blake2b(f"{rule}\0{error_type}".encode(), digest_size=6).hexdigest(),
        first_failed_at=at,
        last_failed_at=at,
        original={name: value for name, value in original.items() if value not in ("", -1)},
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _number(value: bytes | None) -> int:
    return int.from_bytes(value, "big", signed=True) if value is not None and len(value) in NUMBERS else -1


def _digits(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else -1
