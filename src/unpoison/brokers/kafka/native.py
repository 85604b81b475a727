"""What does Kafka itself say about a message? Of a retry: what it said about the original."""

from typing import Any

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.envelope import CLOCK, STAMP
from unpoison.brokers.kafka.record import Record
from unpoison.model.message import Delivery, Native

_CLOCKS = ("none", "create", "log_append")
"""The types of timestamps, by their numbers in the client."""


def native(delivery: Delivery) -> Native:
    record: Record = delivery.receipt.record
    is_copy = STAMP in [name for name, _ in envelope.pairs(record)]
    place = envelope.place(envelope.look_safely(record).stamp) if is_copy else {}
    return Native(record.key(), tuple(envelope.theirs(record)), _of_copy(record, place) if place else _of_original(record))


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
    kind = int(envelope.field(record, CLOCK) or 0)
    return {**place, "timestamp": place["timestamp"] / 1000 if kind else None, "timestamp_type": _CLOCKS[kind]}
