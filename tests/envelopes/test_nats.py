"""Messages of any origin, with header blocks that no client would write."""

from hypothesis import given as for_all
from hypothesis import strategies as some

from tests.contract.nats_lab import NATSLab
from tests.envelopes.generated import SIMPLE, STEADY, each_alone, envelopes, junk
from tests.envelopes.surviving import can_be_looked_at, survives
from unpoison.brokers.nats import wire
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.url import address

OURS = [
    *(b"x-unpoison-" + name for name in (b"id", b"key", b"stamp", b"more", b"group", b"vanished", b"losses", b"alone", b"fresh")),
    *(b"x-unpoison-" + name for name in (b"interrupted", b"replays", b"first-failed-at", b"history", b"was-Nats-Msg-Id")),
    *(b"x-unpoison-" + name for name in (b"due", b"target", b"letter", b"source", b"error", b"reason")),
    b"x-delivery-attempts",
    b"theirs",
    b"",
    b"\xff",
    b"no colon",
]
BATCHES = envelopes(some.tuples(some.sampled_from(OURS), junk))


def send(lab, batch, subject=None):
    broker = lab.broker("orders")
    names = broker.client.topic("orders").names
    connection = Connection(address(lab.url))
    for number, each in enumerate(batch):
        lines = [b"%s%s%s" % (name, b"" if name == b"no colon" else b": ", value) for name, value in each.fields]
        block = b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n" if lines else b""
        reply, future = connection.expect()
        connection.send(wire.publication((subject or (lambda _: "orders"))(names).encode(), reply, block, each.body(number)))
        assert b"error" not in connection.wait(future, "publishing")[1]
    connection.close()


@STEADY
@for_all(BATCHES)
def test_the_consumer_survives_whatever_is_sent(nats, tmp_path_factory, batch):
    with NATSLab(nats, tmp_path_factory.mktemp("lab")) as lab:
        survives(lab, [*batch, *each_alone(OURS, SIMPLE)], lambda batch: send(lab, batch))


@STEADY
@for_all(BATCHES)
def test_whatever_lies_in_the_dlq_can_be_looked_at(nats, tmp_path_factory, batch):
    with NATSLab(nats, tmp_path_factory.mktemp("lab")) as lab:
        send(lab, batch, lambda names: names.dead)
        can_be_looked_at(lab, len(batch))
