"""Records of any origin: whatever their headers are, the consumer goes on and nothing is lost."""

import pytest
from confluent_kafka import Producer

from tests.contract.kafka_lab import KafkaLab
from unpoison.message import Delivery
from unpoison.testing import given
from unpoison.testing.running import drained


@pytest.fixture
def lab(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path) as lab:
        yield lab


def send(lab, records):
    """As another program does: (value, headers) each."""
    broker = lab.broker("orders")
    producer = Producer(broker.session.address.options)
    for value, headers in records:
        producer.produce(broker.session.names("orders").topic, value, headers=headers)
    assert producer.flush(30) == 0


def test_an_id_that_is_not_utf_8_stops_nobody(lab):
    seen = []
    send(lab, [(b"1", []), (b"2", [("x-unpoison-id", b"\xff\xfe")]), (b"3", [("x-unpoison-id", b"sound")])])

    def handle(body: object, delivery: Delivery) -> None:
        seen.append((body, delivery.id))

    drained(given.consumer(lab.app(), "orders", handle))
    assert [body for body, _ in seen] == [1, 2, 3]
    assert seen[1][1] == "\\xff\\xfe"
    assert not lab.dlq("orders").peek()
