"""What must be known of a letter to send its message again, and which record is stored then?

A replay reads it in the DLQ. A letter that has left the DLQ brings it along (`WholeLetter.native`): a message has more to it than
a letter shows, such as a key that is no text.
"""

from collections.abc import Callable

import msgspec
from msgspec import UNSET, UnsetType

from unpoison.brokers.kafka import envelope, foreign, letters
from unpoison.brokers.kafka.envelope import BODY_AT, NewRecord, Record, header
from unpoison.brokers.kafka.names import PARTITIONS, REPLAYS, SUSPECTS, Names
from unpoison.errors import ConfigError, PayloadError, Refusal
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import Refused, not_sent
from unpoison.port.reading import read_one
from unpoison.port.serialization import GROUP, UNREADABLE

CountPartitions = Callable[[str], int]
"""How many partitions a topic has; 0 if it does not exist."""


class MessageAgain(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as it is sent again, but for its counters, and what decides where it goes."""

    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    value: bytes | UnsetType | None = UNSET
    """Beside a letter, only if it is not the body of that."""
    group: str = ""
    """The one that gave it up."""
    origin: str | None = None
    """Of a letter of another system: the topic that it came from, empty if that is not told."""
    partition: int | None = None
    """The one of that topic."""
    deleted_at: str = ""
    """Where its body was that Kafka has deleted since: there is nothing to send."""


_decode = msgspec.msgpack.Decoder(MessageAgain).decode


class Unsendable(PayloadError):
    """The message of a letter cannot be sent, and why."""

    def __init__(self, refusal: Refusal, why: str) -> None:
        self.refusal = refusal
        super().__init__(why)


def message_of(record: Record, original: Record | None) -> MessageAgain:
    """What is sent again of a letter. `original` is as for `letters.read_letter`."""
    if original is None:
        return MessageAgain(None, (), None, deleted_at=header(record, BODY_AT) or "")
    if (told := foreign.told(record)) is not None:
        key, value, headers = foreign.message(record, told)
        partition = told.original.get("partition")
        number = partition if isinstance(partition, int) else None
        return MessageAgain(key, tuple(headers), value, origin=told.source, partition=number)
    stamp = envelope.stamp_headers(original, envelope.read_envelope_safely(record))
    headers = (*envelope.sender_headers(original), *stamp)
    return MessageAgain(record.key(), headers, original.value(), group=header(record, GROUP) or "")


def record_of(names: Names, letter: DeadLetter, message: MessageAgain, count: CountPartitions) -> NewRecord:
    """The copy to send: to the group that gave the message up, if its retry topic exists, else to ours. A letter of another
    system goes to the topic that it came from. Raises Unsendable."""
    if message.deleted_at:
        why = f"it was too large for the DLQ, and Kafka has deleted the message at {message.deleted_at} since"
        raise Unsendable(Refusal.UNFIT, why)
    counters = letter.replayed()
    headers = [*message.headers, *envelope.counter_headers(counters)]
    value = _body(letter) if message.value is UNSET else message.value
    if message.origin is None:
        retry = names.retry_of(message.group) if message.group else names.retry
        if count(retry) < PARTITIONS:
            retry = names.retry
        return NewRecord(retry, value, message.key, headers, SUSPECTS if counters.alone else REPLAYS)
    topic, partitions = foreign.origin(names, message.origin, count)
    if not partitions:
        why = f"it came from topic {topic!r}, which does not exist any more, or which this user may not see: create the topic"
        raise Unsendable(Refusal.NO_SUCH_SOURCE, why)
    return NewRecord(topic, value, message.key, headers, foreign.partition(message.partition, message.key, partitions))


def replayed(names: Names, id_: str, record: Record, original: Record | None, count: CountPartitions) -> NewRecord:
    """The copy of a letter that is in the DLQ."""
    letter = letters.read_letter(names.source, id_, letters.DEAD, record, original)
    try:
        return record_of(names, letter, message_of(record, original), count)
    except Unsendable as error:
        raise PayloadError(
            f"Letter {id_!r} cannot be sent, and no letter was: {error}. To discard the letter: unpoison dlq discard {id_}"
        ) from None


def whole_letter(source: str, id_: str, record: Record, original: Record | None) -> WholeLetter:
    """All of a letter that waits. One whose body was deleted is taken without it: what is known of the failure is still there."""
    letter = letters.read_letter(source, id_, letters.DEAD, record, original)
    native = read_one(record, lambda record: _native(message_of(record, original), letter), lambda *_: None)
    pairs = list(envelope.headers_of(record))
    if original is not None and original is not record:
        pairs = [*envelope.sender_headers(original), *pairs]
    return WholeLetter(letter=letter, headers=tuple((name, _shown(value)) for name, value in pairs), native=native)


def _native(message: MessageAgain, letter: DeadLetter) -> bytes:
    if message.value == _body(letter):
        message = msgspec.structs.replace(message, value=UNSET)
    return msgspec.msgpack.encode(message)


def _body(letter: DeadLetter) -> bytes | None:
    return None if letter.is_tombstone else letter.body


def _shown(value: bytes | None) -> str | bytes | None:
    """Text where it is text."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def sent_back(names: Names, whole: WholeLetter, count: CountPartitions) -> NewRecord | Refused:
    """The copy of a letter that has left the DLQ, or why there is none. Anyone may write to the database that it comes from."""
    letter = whole.letter
    try:
        message = _decode(whole.native or b"")
    except UNREADABLE:
        return Refused(
            Refusal.UNFIT,
            f"Letter {letter.id!r} was not sent: its key and headers as Kafka had them are missing or cannot be read, so another "
            f"message would arrive. Publish its body as a new message, or discard the letter.",
        )
    try:
        return record_of(names, letter, message, count)
    except Unsendable as error:
        why = f"Letter {letter.id!r} was not sent: {error}. If that cannot be changed, discard the letter."
        return Refused(error.refusal, why, error)
    except ConfigError as error:
        return not_sent(error)
