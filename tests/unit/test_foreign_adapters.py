"""Whatever stands in a DLQ, every adapter shows it, and what it would send again can be sent."""

from dataclasses import dataclass, field

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_foreign_letters import ENVELOPES, KAFKA, WHOLE
from unpoison.brokers.kafka import foreign as kafka_foreign
from unpoison.brokers.kafka import letters as kafka
from unpoison.brokers.kafka import resending
from unpoison.brokers.kafka.names import Names as KafkaNames
from unpoison.brokers.nats import copies as nats
from unpoison.brokers.nats import envelope as nats_envelope
from unpoison.brokers.nats.envelope import Place
from unpoison.brokers.rabbitmq import letters as rabbitmq
from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.properties import Header
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.brokers.redis import envelope as redis
from unpoison.brokers.sqs import copies as sqs
from unpoison.model.dead_letter import DeadLetter
from unpoison.port.foreign import json_form

BODIES = ENVELOPES | WHOLE | st.binary(max_size=50)


def check(letter: DeadLetter, carried: bytes | None = None, *, has_headers: bool = True) -> None:
    """It is shown, and in place of an envelope the message that it carries."""
    inside = None if carried is None else json_form.read(carried, has_headers=has_headers)
    assert inside is None or inside.content is None or letter.body == inside.content.body
    assert letter.error_type != "unpoison.Unreadable", letter.error
    msgspec.json.encode(letter.as_json())
    assert isinstance(letter.body, bytes)


@dataclass
class Read:
    """A record of the DLQ, as Kafka's client gives it."""

    body: bytes | None
    pairs: list[tuple[str, bytes | None]] = field(default_factory=list)

    def topic(self):
        return "orders.dlq"

    def partition(self):
        return 0

    def offset(self):
        return 7

    def key(self):
        return b"\xff"

    def value(self):
        return self.body

    def headers(self):
        return self.pairs

    def timestamp(self):
        return (1, 1_785_000_000_000)


@given(BODIES | st.none(), KAFKA)
def test_whatever_is_in_a_dlq_of_kafka_is_shown_and_can_be_sent(body, headers):
    record = Read(body, headers)
    letter = kafka.read_letter("orders", "orders-7", "dead", record, record)
    check(letter)
    names, whole = KafkaNames("orders", "shop"), resending.whole_letter("orders", "orders-7", record, record)
    made = resending.replayed(names, letter.id, record, record, lambda _: 3)
    assert resending.sent_back(names, whole, lambda _: 3) == made
    if kafka_foreign.told(record) is not None:
        assert (made.value or b"", made.value is None) == (letter.body, letter.is_tombstone)
        assert 0 <= made.partition < 3
        assert made.topic
        assert all(isinstance(name, str) and isinstance(value, bytes | None) for name, value in made.headers)


def test_a_letter_of_kafka_whose_failure_cannot_be_read_is_sent_back_as_it_is_replayed(monkeypatch):
    monkeypatch.setattr(kafka_foreign, "letter", None)
    record = Read(b'{"original_topic": "orders", "original_value": 1, "error": "no"}')
    names, whole = KafkaNames("orders", "shop"), resending.whole_letter("orders", "orders-7", record, record)
    made = resending.replayed(names, "orders-7", record, record, lambda _: 3)
    assert (whole.letter.body, made.value) == (record.body, b"1")
    assert resending.sent_back(names, whole, lambda _: 3) == made


@given(
    BODIES, st.lists(st.binary(max_size=30), max_size=3), st.sampled_from([b"x-death", b"task", b"x-first-death-queue", b"id"])
)
def test_whatever_is_in_a_dlq_of_rabbitmq_is_shown_and_can_be_sent(body, values, name):
    headers = [Header(name, b"S" + len(value).to_bytes(4, "big") + value) for value in values]
    arrived = Arrived(1, False, properties.write("m1", [*headers, Header(b"lang", b"A\0\0\0\x02F\0")]), body)
    found = rabbitmq.read("orders", arrived)
    check(found.letter)
    sent = rabbitmq.sent_back("orders", arrived, found.letter.id, "orders.dlq.history")
    assert sent.body == found.letter.body
    assert properties.read(sent.properties).id == "m1"
    assert sent.queue


@given(BODIES.map(lambda body: body.decode("utf-8", "replace")), st.text(max_size=20))
def test_whatever_is_in_a_dlq_of_sqs_is_shown_and_can_be_sent(body, arn):
    attributes = {"ApproximateReceiveCount": "3", "SentTimestamp": "1785000000000", "DeadLetterQueueSourceArn": arn}
    raw = {"MessageId": "m-1", "ReceiptHandle": "r", "Body": body, "Attributes": attributes}
    found = sqs.read("orders", raw)
    check(found.letter, body.encode(), has_headers=False)
    assert found.seen.body == found.letter.body
    noted = sqs.fitted(
        "https://replays", found.seen, sqs.written(found.letter, found.seen, found.letter.id, "replayed"), found.raw
    )
    again = sqs.read("orders", {**raw, "Body": noted.entry["MessageBody"], "MessageAttributes": noted.entry["MessageAttributes"]})
    assert (again.letter.body, again.letter.state, again.told) == (found.letter.body, "replayed", None)
    assert sqs.elsewhere("https://mail.fifo", found).entry["MessageBody"]


@given(BODIES)
def test_whatever_is_in_a_dlq_of_nats_is_shown_and_can_be_sent(body):
    place = Place("orders_DLQ", "c", 1, 7, 7, 1_785_000_000 * 10**9)
    found = nats.read("orders", place, b"", body, number=7, state="dead", group="shop")
    check(found.letter, body)
    block = nats_envelope.copied(found.seen, found.block, found.letter.replayed(), nats.about(found.letter))
    again = nats.read("orders", place, block, found.letter.body, number=7, state="replayed", group="shop")
    assert (again.letter.body, again.letter.message.key, again.told) == (found.letter.body, found.letter.message.key, None)


@given(BODIES, st.dictionaries(st.sampled_from([b"key", b"headers", b"original_value", b"error"]), st.binary(max_size=20)))
def test_whatever_is_in_a_dlq_of_redis_is_shown_and_can_be_sent(body, more):
    for fields in ({b"body": body, **more}, {b"original_topic": b"mail", **more}, {b"data": body}):
        flat = [part for pair in fields.items() for part in pair]
        letter, told = redis.letter_of("orders", b"1785000000000-0", "dead", flat), redis.told_by("orders", b"1-0", flat)
        check(letter)
        original = redis.by_name(redis.original_of(letter.message, flat, told))
        assert original == fields if told is not None and told.content is None else original[b"body"] == letter.body


def test_what_rabbitmq_noted_and_nobody_can_read_is_left_out():
    arrived = Arrived(1, False, properties.write("m1", [Header(b"x-death", b"A\0\0\0\x05F\0\0\0\x09")]), b"1")
    check(rabbitmq.read("orders", arrived).letter)
