"""Messages of any origin, with headers of every type that AMQP has."""

import struct

from hypothesis import given as for_all
from hypothesis import strategies as some

from tests.contract.rabbitmq_lab import RabbitMQLab
from tests.envelopes.generated import STEADY, each_alone, envelopes, junk
from tests.envelopes.surviving import can_be_looked_at, survives
from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.properties import Header
from unpoison.brokers.rabbitmq.writing import Copy

OURS = [
    *(b"x-unpoison-" + name for name in (b"stamp", b"key", b"id", b"vanished", b"losses", b"alone", b"fresh")),
    *(b"x-unpoison-" + name for name in (b"interrupted", b"replays", b"first-failed-at", b"history", b"letter", b"letter-id")),
    *(b"x-unpoison-" + name for name in (b"state", b"source", b"error", b"reason")),
    b"x-delivery-attempts",
    b"x-delivery-count",
    b"x-acquired-count",
    b"x-death",
    b"unpoison-d0",
    b"theirs",
    b"",
    b"\xff",
]


def long(kind, data):
    return kind + struct.pack(">I", len(data)) + data


def nested(depth):
    """Tables in tables: deeper than Python can go, and the server does not mind."""
    data = b""
    for _ in range(depth):
        data = b"\x01a" + long(b"F", data)
    return long(b"F", data)


FLOATS = [0.0, 0.01, -1.0, 1e300]
"""The server itself cannot read what is not a finite number, and closes the connection of whoever sends it."""
VALUES = some.one_of(
    junk.map(lambda data: long(b"S", data)),
    junk.map(lambda data: long(b"x", data)),
    some.sampled_from([b"t\x00", b"t\x01", b"V", b"b\xff", b"B\xff", b"s\xff\xff", b"u\xff\xff", b"I\xff\xff\xff\xff"]),
    some.integers(-3, 3).map(lambda number: b"I" + struct.pack(">i", number)),
    some.sampled_from([2**62, -(2**62)]).map(lambda number: b"l" + struct.pack(">q", number)),
    some.sampled_from(FLOATS).map(lambda number: b"d" + struct.pack(">d", number)),
    some.sampled_from([0.0, 1e30]).map(lambda number: b"f" + struct.pack(">f", number)),
    some.tuples(some.integers(0, 255), some.integers(-9, 9)).map(lambda pair: b"D" + struct.pack(">Bi", *pair)),
    some.sampled_from([0, 2**63, 2**64 - 1]).map(lambda moment: b"T" + struct.pack(">Q", moment)),
    some.sampled_from([nested(1), nested(500), long(b"A", b"t\x01V" + nested(2)), long(b"F", b""), long(b"A", b"")]),
)
KINDS = [long(b"S", b"\xff\xfe"), b"t\x01", b"I\x00\x00\x00\x01", nested(500)]
WAITS = [long(b"S", b"x"), b"V", b"t\x01", b"d" + struct.pack(">d", 1e300), b"d" + struct.pack(">d", -1.0), nested(500)]
"""How long a message has to wait: with one that makes sense it would wait here too."""
BATCHES = envelopes(
    some.one_of(
        some.tuples(some.sampled_from(OURS), VALUES), some.tuples(some.just(b"x-unpoison-wait"), some.sampled_from(WAITS))
    )
)


def send(lab, batch, queue="orders"):
    broker = lab.broker("orders")
    copies = [
        Copy("", queue, properties.write(None, [Header(*field) for field in each.fields]), each.body(number))
        for number, each in enumerate(batch)
    ]
    stored = broker.connections.store(copies)
    assert all(map(stored.stored, range(len(copies))))
    broker.close()


@STEADY
@for_all(BATCHES)
def test_the_consumer_survives_whatever_is_sent(rabbitmq, tmp_path_factory, batch):
    with RabbitMQLab(rabbitmq, tmp_path_factory.mktemp("lab")) as lab:
        survives(lab, [*batch, *each_alone(OURS, KINDS)], lambda batch: send(lab, batch))


@STEADY
@for_all(BATCHES)
def test_whatever_lies_in_the_dlq_can_be_looked_at(rabbitmq, tmp_path_factory, batch):
    with RabbitMQLab(rabbitmq, tmp_path_factory.mktemp("lab")) as lab:
        send(lab, batch, "orders.dlq")
        can_be_looked_at(lab, len(batch))
