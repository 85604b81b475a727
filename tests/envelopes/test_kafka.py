"""Records of any origin, sent with Kafka's own client."""

import pytest
from confluent_kafka import Producer
from hypothesis import given as for_all
from hypothesis import strategies as some

from tests.contract.kafka_lab import KafkaLab
from tests.envelopes.generated import SIMPLE, STEADY, Envelope, each_alone, envelopes, junk, some_bytes
from tests.envelopes.surviving import can_be_looked_at, survives
from unpoison.brokers.kafka.names import REPLAYS, SUSPECTS
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.running import drained

OURS = [
    *(f"x-unpoison-{name}" for name in ("id", "stamp", "counters", "due", "timestamp", "holder", "ref", "claim", "stop")),
    *(f"x-unpoison-{name}" for name in ("letter", "letter-id", "group", "body-at", "source", "error", "reason", "other")),
    "x-delivery-attempts",
    "kafka_dlt-original-offset",
    "__connect.errors.partition",
    "theirs",
    "",
]
BATCHES = envelopes(
    some.tuples(some.sampled_from(OURS), some.one_of(some.none(), junk)),
    tails=some.one_of(some.none(), some_bytes),
    keys=some.one_of(some.none(), junk),
)


@pytest.fixture
def lab(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path) as lab:
        yield lab


def send(lab, batch, *, to_dlq=False, to_retry=None):
    broker = lab.broker("orders")
    producer = Producer(broker.connection.address.options)
    names = broker.connection.names("orders")
    topic = names.dlq if to_dlq else names.topic if to_retry is None else names.retry
    for number, each in enumerate(batch):
        partition = {} if to_retry is None else {"partition": to_retry}
        producer.produce(topic, each.body(number), key=each.key, headers=list(each.fields), **partition)
    assert producer.flush(30) == 0


def test_an_id_that_is_not_utf_8_stops_nobody(lab):
    seen = []
    producer = Producer(lab.broker("orders").connection.address.options)
    topic = lab.broker("orders").connection.names("orders").topic
    for value, headers in ((b"1", []), (b"2", [("x-unpoison-id", b"\xff\xfe")]), (b"3", [("x-unpoison-id", b"sound")])):
        producer.produce(topic, value, headers=headers)
    assert producer.flush(30) == 0

    def handle(body: object, delivery: Delivery) -> None:
        seen.append((body, delivery.id))

    drained(given.consumer(lab.app(), "orders", handle))
    assert [body for body, _ in seen] == [1, 2, 3]
    assert seen[1][1] == "\\xff\\xfe"
    assert not lab.dlq("orders").peek()


@STEADY
@for_all(BATCHES)
def test_the_consumer_survives_whatever_is_sent(kafka, tmp_path_factory, batch):
    with KafkaLab(kafka, tmp_path_factory.mktemp("lab")) as lab:
        survives(lab, [*batch, *each_alone(OURS, [None, *SIMPLE])], lambda batch: send(lab, batch))


def test_junk_in_the_retry_topic_costs_no_other_message(lab):
    """In two of its partitions a stop may stand, which ends a copy that an operator has sent. An empty one ends nobody."""
    stop = Envelope("done", b"", None, (("x-unpoison-stop", b""),))
    odd = Envelope("done", b"", None, (("x-unpoison-claim", "a/²".encode()), ("x-unpoison-due", b"nan")))
    sound = Envelope("done", b"", None, ())
    for partition in (SUSPECTS, REPLAYS):
        send(lab, [stop, odd, sound, sound], to_retry=partition)
    done = []

    def handle(body: bytes) -> None:
        done.append(body)

    drained(given.consumer(lab.app(), "orders", handle))
    assert sorted(done) == sorted([b"done-0-", b"done-1-", b"done-2-", b"done-3-"] * 2)


@STEADY
@for_all(BATCHES)
def test_whatever_lies_in_the_dlq_can_be_looked_at(kafka, tmp_path_factory, batch):
    batch = batch[:10]
    with KafkaLab(kafka, tmp_path_factory.mktemp("lab")) as lab:
        send(lab, batch, to_dlq=True)
        can_be_looked_at(lab, len(batch))
