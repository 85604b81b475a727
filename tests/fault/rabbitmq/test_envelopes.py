"""What others put into RabbitMQ: headers that no client can read, queues of another kind, letters that are not ours."""

import struct
import threading
from datetime import UTC, datetime
from decimal import Decimal
from urllib.parse import urlsplit

import pika
import pytest

from tests.contract.rabbitmq_lab import ClassicLab, RabbitMQLab
from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.brokers.rabbitmq.properties import Header
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.errors import BrokerUnavailable, Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.processes import PATIENCE
from unpoison.testing.running import Running, drained

IN_MICROSECONDS = Header(b"sent", b"T" + struct.pack(">Q", 1_700_000_000_000_000))


def put(lab: RabbitMQLab, queue: str, body: bytes, *entries: Header) -> None:
    """A message with headers that no client would write."""
    broker = RabbitMQBroker(lab.url)
    broker.open(["orders"])
    batch = broker.connections.store([Copy("", queue, properties.write("foreign", list(entries)), body)])
    assert batch.stored(0)
    broker.close()


def test_a_header_that_the_client_cannot_decode_stops_nobody_and_survives_unchanged(lab):
    put(lab, "orders", b"1", IN_MICROSECONDS, Header(b"broken", b"S" + struct.pack(">I", 2) + b"\xff\xfe"))
    seen: list[Delivery] = []

    def handle(payload: int, delivery: Delivery) -> None:
        seen.append(delivery)
        if payload == 1:
            raise Permanent("no")

    app = given.consumer(lab.app(), "orders", handle)
    app.publish("orders", 2)
    drained(app)
    assert sorted(delivery.body for delivery in seen) == [b"1", b"2"]
    (letter,) = lab.dlq("orders").peek()
    assert letter.message.headers["sent"] == "1700000000000000"
    broker = lab.broker("orders")
    lab.dlq("orders").replay_all()
    (again,) = broker.fetch("orders", 1)
    entries = properties.read(again.receipt.envelope).headers.entries
    assert IN_MICROSECONDS in entries
    assert Header(b"broken", b"S" + struct.pack(">I", 2) + b"\xff\xfe") in entries


def test_a_handler_sees_every_property_and_the_types_of_headers(lab, raw):
    lab.broker("orders")
    raw.exchange_declare("shop", "topic")
    raw.queue_bind("orders", "shop", "order.*")
    when = datetime(2026, 1, 2, tzinfo=UTC)
    headers = {
        "text": "ü",
        "number": 2**40,
        "yes": True,
        "none": None,
        "when": when,
        "list": [1, "a"],
        "table": {"b": Decimal("1.5")},
    }
    sent = pika.BasicProperties("text/plain", "gzip", headers, 2, 4, "corr", "answers", "60000", "m-1", 1_700_000_000, "placed")
    sent.app_id, sent.user_id = "shop", urlsplit(lab.url).username
    raw.basic_publish("shop", "order.new", b"1", sent)
    seen = []

    def handle(body: bytes, delivery: Delivery) -> None:
        seen.append(delivery)
        if delivery.attempt == 1:
            raise ConnectionError

    drained(given.consumer(lab.app(), "orders", handle, backoff=Backoff.immediate()))
    first, retried = seen
    assert dict(first.native.headers) == {
        "text": "ü".encode(),
        "number": 2**40,
        "yes": True,
        "none": None,
        "when": int(when.timestamp()),
        "list": [1, b"a"],
        "table": {"b": 1.5},
    }
    assert dict(first.headers) == {
        "text": "ü",
        "number": str(2**40),
        "yes": "true",
        "none": "",
        "when": str(int(when.timestamp())),
        "list": '[1, "a"]',
        "table": '{"b": 1.5}',
    }
    copied = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "correlation_id": "corr",
        "reply_to": "answers",
        "type": "placed",
        "timestamp": 1_700_000_000,
        "app_id": "shop",
        "priority": 4,
        "message_id": "m-1",
        "cluster_id": None,
        "expiration": "60000",
        "delivery_mode": 2,
        "exchange": "shop",
        "routing_key": "order.new",
    }
    assert first.native.properties == {**copied, "user_id": sent.user_id}
    assert retried.native.headers == first.native.headers
    assert {name: retried.native.properties[name] for name in copied} == copied


def test_a_copy_leaves_the_headers_of_the_broker_behind(lab):
    count = properties.header(b"x-delivery-count", 17)
    put(lab, "orders", b"1", count, properties.header(b"x-first-death-queue", "elsewhere"), properties.header(b"mine", "1"))
    broker = lab.broker("orders")
    (delivery,) = broker.fetch("orders", 1)
    assert delivery.counters == Counters(), "a count that came with the message was believed"
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1))]))
    (again,) = broker.fetch("orders", 1)
    names = {entry.name for entry in properties.read(again.receipt.envelope).headers.entries}
    route = {b"x-unpoison-exchange", b"x-unpoison-routing-key"}
    assert names == {b"mine", b"x-delivery-attempts", b"x-unpoison-counters", b"x-unpoison-stamp", *route}


def test_a_queue_that_was_there_before_is_used_as_it_is_and_the_difference_is_told(lab, raw):
    raw.queue_declare("orders", durable=True, arguments={"x-max-length": 1000})
    broker = lab.connect()
    (finding,) = broker.open(["orders"])
    assert (finding.name, finding.loses) == ("queue-differs", False)
    assert "'orders'" in finding.problem
    assert "x-queue-type" in finding.problem or "x-dead-letter-exchange" in finding.problem
    broker.publish(given.messages("orders", 2))
    assert len(broker.fetch("orders", 10)) == 2
    broker.close()
    raw.queue_declare("orders", durable=True, arguments={"x-max-length": 1000})


def test_on_a_classic_queue_returned_messages_are_counted_too(lab, raw):
    raw.queue_declare("orders", durable=True)
    lab.broker("orders").publish(given.messages("orders", 2))
    for vanished in (0, 1, 2, 2):
        broker = lab.broker("orders")
        deliveries = broker.fetch("orders", 10)
        assert [delivery.counters for delivery in deliveries] == [Counters(vanished=vanished)] * 2
        broker.close()


def test_what_rabbitmq_itself_dead_lettered_is_a_letter_and_can_be_replayed(lab, raw):
    lab.broker("orders").publish(given.messages("orders", 1))
    method, _, _ = raw.basic_get("orders")
    raw.basic_reject(method.delivery_tag, requeue=False)
    dlq = lab.dlq("orders")
    while not (letters := dlq.peek()):
        pass
    assert (letters[0].body, letters[0].error_type) == (b"0", "rabbitmq.rejected")
    assert "dead-lettered it from queue 'orders'" in letters[0].rule
    assert dlq.replay_one(letters[0].id)
    assert [delivery.body for delivery in lab.broker("orders").fetch("orders", 10)] == [b"0"]


def test_thirty_looks_at_a_letter_do_not_make_it_vanish(lab):
    given.dead_letters(lab, "orders", [b"1", b"2"])
    dlq = lab.dlq("orders")
    for _ in range(30):
        assert [letter.body for letter in dlq.peek()] == [b"1", b"2"]


def test_messages_that_fail_at_once_with_jitter_all_come_back(lab):
    again: list[int] = []
    all_back = threading.Event()

    def handle(number: int, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ConnectionError("not now")
        again.append(number)
        if len(again) == 200:
            all_back.set()

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.exponential(base=2, max=2))
    app.publish_many("orders", range(200))
    with Running(app):
        assert all_back.wait(PATIENCE)
    assert sorted(again) == list(range(200))


def test_if_what_came_back_cannot_be_counted_nothing_that_came_with_it_is_held_for_ever(tmp_path, rabbitmq):
    """On a classic queue it is counted by a copy, and that may be refused."""
    with ClassicLab(rabbitmq, tmp_path) as lab:
        broker, publisher, other = (lab.broker("orders") for _ in range(3))
        publisher.publish(given.messages("orders", 2))
        lab.steal(other, list(other.fetch("orders", 2)))
        publisher.publish(given.messages("orders", 2, first=2))
        with lab.nothing_can_be_published(), pytest.raises(BrokerUnavailable):
            broker.fetch("orders", 10)
        back = {delivery.body: delivery.counters.vanished for delivery in broker.fetch("orders", 10)}
        assert back == {b"0": 1, b"1": 1, b"2": 0, b"3": 0}
