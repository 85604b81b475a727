"""Which records are stored for messages, and what became of each message that was published?

Each record is confirmed, or fails with an error of its own. Some errors say that the server did not store it. After all others,
above all after a timeout, it may be stored.
"""

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.envelope import DUE, HOLDER, REF, NewRecord, Record
from unpoison.brokers.kafka.errors import DENIED, error_text
from unpoison.brokers.kafka.names import HELD, SUSPECTS, Names, tier
from unpoison.brokers.kafka.partition import Partition
from unpoison.errors import Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import STORED, Kept, Published, Refused, without_source

_REFUSALS = {
    **dict.fromkeys(DENIED, Refusal.NOT_PERMITTED),
    KafkaError.MSG_SIZE_TOO_LARGE: Refusal.TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: Refusal.TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE: Refusal.TOO_LARGE,
    KafkaError.INVALID_RECORD: Refusal.UNFIT,
    KafkaError.POLICY_VIOLATION: Refusal.UNFIT,
    KafkaError.UNKNOWN_TOPIC_OR_PART: Refusal.NO_SUCH_SOURCE,
    KafkaError.TOPIC_EXCEPTION: Refusal.NO_SUCH_SOURCE,
    KafkaError._UNKNOWN_TOPIC: Refusal.NO_SUCH_SOURCE,  # noqa: SLF001 - they have no other names
    KafkaError._UNKNOWN_PARTITION: Refusal.NO_SUCH_SOURCE,  # noqa: SLF001
    KafkaError._INVALID_ARG: Refusal.UNFIT,  # noqa: SLF001
}
"""Errors after which a record is certainly not stored. After any other, an earlier try may have been."""


def published_record(names: Names, message: Outgoing, now: float) -> NewRecord:
    headers = envelope.publish_headers(message.id, message.headers)
    key = None if message.key is None else message.key.encode()
    if message.delay <= 0:
        return NewRecord(names.topic, message.body, key, headers)
    headers.append((DUE, f"{now + message.delay:.3f}".encode()))
    return NewRecord(names.retry, message.body, key, headers, tier(message.delay))


def retry_record(names: Names, item: Kept, record: Record, now: float) -> NewRecord:
    """A retry, in the group's own topic: other groups have nothing to do with it."""
    extra = {DUE: f"{now + item.after:.3f}"} if item.after > 0 else {}
    headers = envelope.copy_headers(record, envelope.read_envelope_safely(record, names.topic), item.counters, extra)
    # A suspect that must wait is fetched when it is due, and then set aside into the partition of the suspects.
    partition = SUSPECTS if item.counters.alone and item.after <= 0 else tier(item.after)
    return NewRecord(names.retry, record.value(), record.key(), headers, partition)


def held_record(names: Names, partition: Partition, record: Record, holder: str) -> tuple[str, NewRecord]:
    """For a message that runs here while its partition goes elsewhere: no other consumer starts it while this one lives."""
    ref = f"{partition.topic}/{partition.number}/{record.offset()}#{holder}"
    seen = envelope.read_envelope_safely(record, names.topic)
    headers = envelope.copy_headers(record, seen, partition.counters_of(record, seen.counters), {HOLDER: holder, REF: ref})
    return ref, NewRecord(names.retry, record.value(), record.key(), headers, HELD)


def settled_note(names: Names, ref: str) -> NewRecord:
    """The holder's note that it has settled a message."""
    return NewRecord(names.retry, None, None, [(REF, ref.encode())], HELD)


def publish(connection: Connection, messages: Sequence[Outgoing], ensure: Callable[[str], object]) -> Published:
    refused = without_source(messages, ensure)
    numbers: Sequence[int] = range(len(messages)) if not refused else [n for n in range(len(messages)) if n not in refused]
    names = {source: connection.names(source) for source in {messages[n].source for n in numbers}}
    if late := next((messages[n] for n in numbers if messages[n].delay > 0), None):
        names[late.source].must_have_group()
        connection.learn_the_time(names[late.source].states)
    now = connection.now()
    failed = connection.store([published_record(names[messages[n].source], messages[n], now) for n in numbers])
    if not failed and not refused:
        return STORED
    unknown: dict[int, str] = {}
    for index, error in failed.items():
        number, reason = numbers[index], f"Kafka did not confirm it: {error_text(error)}."
        if error.code() in _REFUSALS:
            refused[number] = Refused(_REFUSALS[error.code()], reason)
        else:
            unknown[number] = reason
    return Published(refused, unknown)
