"""What does a letter say that another system wrote, and what does a replay of it send where?

Its message goes to the topic that it came from, as it did when it was first sent: other systems have no place for one group
alone. Headers that tell of the failure stay behind, or the next failure would be taken for this one.
"""

import zlib
from collections.abc import Callable

import msgspec

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.envelope import Headers, Record, header, headers_of
from unpoison.brokers.kafka.names import Names
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message
from unpoison.port import serialization
from unpoison.port.foreign import celery, json_form, kafka_headers
from unpoison.port.foreign.told import UNKNOWN_RULE, Told
from unpoison.port.reading import read_one
from unpoison.port.serialization import LETTER

KIND = "kafka.Unknown"
_INTERNAL = (".retry", ".dlq", ".dlq.states")


def told(record: Record) -> Told | None:
    """What another system says about a letter; None for one of ours, and for one that says nothing."""
    return None if serialization.is_ours(header(record, LETTER)) else read_one(record, _told, lambda *_: None)


def _told(record: Record) -> Told | None:
    pairs = headers_of(record)
    body = record.value() or b""
    found = kafka_headers.read(pairs) or json_form.read(body, has_tombstones=True)
    return celery.with_task(found, celery.facts(dict(pairs), body), UNKNOWN_RULE)


def letter(message: Message, record: Record, counters: Counters) -> DeadLetter:
    """As far as it says something. Counters are there if a replay of ours has failed in the other system again."""
    found = _told(record) or Told(rule=UNKNOWN_RULE)
    sent = {name: value for name, value in message.headers.items() if not kafka_headers.is_told(name)}
    message = msgspec.structs.replace(message, headers=sent)
    return found.letter(message, KIND, record.timestamp()[1] / 1000, counters)


def is_internal(names: Names, topic: str) -> bool:
    """Whether it is one of unpoison's own beside this source: nothing comes from there that another system gave up."""
    return topic in (names.dlq, names.states) or (topic.startswith(f"{names.topic}.") and topic.endswith(_INTERNAL))


def message(record: Record, found: Told) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, body and headers of the message that the other system gave up; the counters are not among the headers."""
    content = found.content
    key = content.key if content is not None and content.is_key_told else record.key()
    headers: Headers = [pair for pair in envelope.sender_headers(record) if not kafka_headers.is_told(pair[0])]
    if content is not None and content.headers is not None:
        headers = [(name, value.encode()) for name, value in content.headers.items()]
    value = record.value() if content is None else None if content.is_tombstone else content.body
    return key, value, [*headers, *envelope.stamp_headers(record, envelope.read_envelope_safely(record))]


def origin(names: Names, told: str, count: Callable[[str], int]) -> tuple[str, int]:
    """The topic that a message came from, and how many partitions it has; `count` knows that of any topic, 0 if it is not there.
    The prefix of the URL may be missing: it is our own word."""
    if told in ("", names.source) or is_internal(names, told):
        return names.topic, count(names.topic)
    found = ((topic, count(topic)) for topic in dict.fromkeys((told, f"{names.prefix}{told}")))
    return next((each for each in found if each[1]), (told, 0))


def partition(told: int | None, key: bytes | None, partitions: int) -> int:
    """The one that it came from, for the order of its key; in a topic that has become smaller, any that is the same each time."""
    return told if told is not None and 0 <= told < partitions else zlib.crc32(key or b"") % partitions
