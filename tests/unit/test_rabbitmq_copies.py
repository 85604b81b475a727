"""Is a copy that may still be on its way never sent twice, and one that was refused sent again?"""

from types import SimpleNamespace

import pytest

from unpoison.brokers.rabbitmq import envelope, properties
from unpoison.brokers.rabbitmq.copies import CopyStore
from unpoison.brokers.rabbitmq.envelope import Receipt
from unpoison.brokers.rabbitmq.properties import Header, header
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.brokers.rabbitmq.writing import Batch, Writer
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Dead, Kept
from unpoison.testing import given


class Slow(Writer):
    """A writer without a server: it knows what was sent, and a test says what is confirmed."""

    def __init__(self):
        super().__init__(SimpleNamespace(blocked=None))
        self.sent = []

    def submit(self, copies):
        self.sent.append(Batch(copies, 1))
        return self.sent[-1]

    def wait(self, batch, timeout=0.0):
        super().wait(batch, timeout)


@pytest.fixture
def writer():
    return Slow()


@pytest.fixture
def store(writer):
    notes = SimpleNamespace(needed=lambda delays: [], forget=lambda: None)
    connections = SimpleNamespace(writer=lambda: writer, notes=notes, route=lambda queue, delay: (("", queue), []))
    return CopyStore(connections).store


def delivery():
    return Delivery(Receipt(None, 1, properties.write("m1", [])), "orders", "m1", b"1")


@pytest.fixture
def retry():
    return Kept(delivery(), Counters(attempts=1))


def test_a_copy_whose_confirm_is_late_is_waited_for_and_not_sent_again(store, writer, retry):
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="has not confirmed 1 of 1 message"):
            store([retry])
    writer.sent[0].close(1, 1, positive=True)
    assert store([retry]).refused == {}
    assert len(writer.sent) == 1


def test_the_letter_that_was_stored_late_has_the_id_that_is_reported(store, writer):
    dead = Dead(delivery(), given.letter_of(delivery()))
    with pytest.raises(BrokerUnavailable):
        store([dead])
    writer.sent[0].close(1, 1, positive=True)
    (letter_id,) = store([dead]).letter_ids.values()
    assert letter_id.encode() in writer.sent[0].copies[0].properties


def test_a_copy_that_was_refused_is_not_stored_and_is_sent_again(store, writer, retry):
    with pytest.raises(BrokerUnavailable):
        store([retry])
    writer.sent[0].close(1, 1, positive=False)
    with pytest.raises(BrokerUnavailable):
        store([retry])
    writer.sent[1].unroutable["", "orders"] = "NO_ROUTE"
    writer.sent[1].close(1, 1, positive=True)
    with pytest.raises(BrokerUnavailable):
        store([retry])
    assert len(writer.sent) == 3


def test_a_copy_that_the_server_refuses_at_once_says_why(store, writer, retry):
    writer.submit_plainly = writer.submit

    def submit(copies):
        batch = writer.submit_plainly(copies)
        batch.close(1, 1, positive=False)
        return batch

    writer.submit = submit
    assert "the queue is full" in store([retry]).refused[0]
    store([retry])
    assert len(writer.sent) == 2


def test_a_copy_on_a_connection_that_broke_is_sent_again(store, writer, retry):
    with pytest.raises(BrokerUnavailable):
        store([retry])
    writer.sent[0].broken = "cut"
    writer.sent[0].done.set()
    with pytest.raises(BrokerUnavailable):
        store([retry])
    assert len(writer.sent) == 2


ROUTE = b"\x04shop\x06placed"
THEIRS = [header(b"trace", "a"), Header(b"odd", b"S\x00\x00\x00\x01\xff"), header(b"x-delivery-attempts", 7)]
STAMPED = [*THEIRS, header(envelope.STAMP, "s1"), header(envelope.KEY, "customer-7"), header(envelope.LONG_ID, "x" * 300)]
COPIED = [*STAMPED, header(envelope.EXPIRATION, "60000"), header(envelope.SENDERS_ATTEMPTS, 3)]
CAME_FROM = [header(envelope.EXCHANGE, "first"), header(envelope.ROUTING_KEY, "way")]
DIED = Header(b"x-death", b"A\x00\x00\x00\x05F\x00\x00\x00\x00")


@pytest.mark.parametrize("headers", [STAMPED, COPIED, [*COPIED, *CAME_FROM], [*COPIED, DIED]])
def test_a_copy_is_made_of_a_delivery_just_as_of_all_that_its_envelope_says(headers):
    like = properties.read(properties.expiring(5))
    arrived = Arrived(1, False, properties.write("m1", headers, like), b"1", ROUTE)
    delivery = envelope.read("orders", None, envelope.ForeignMessages(), arrived)
    of_delivery, of_all = (
        envelope.copied(each, Counters(2)) for each in (envelope.of_delivery(delivery), envelope.opened(arrived))
    )
    assert properties.read(of_delivery) == properties.read(of_all)


def test_a_copy_of_what_cannot_be_read_keeps_what_the_sender_wrote():
    table = b"\x01a" + b"F\x00\x00\x00\x02"
    deep = Header(b"x-death", b"A\x00\x00\x00\x05D\x00\x00\x00\x00" + table)
    arrived = Arrived(1, False, properties.write("m1", [header(b"trace", "a"), deep]), b"1", ROUTE)
    unread = envelope.not_read("orders", None, arrived, ValueError("odd"))
    copy = properties.read(envelope.copied(envelope.of_delivery(unread), Counters()))
    assert copy.id == unread.id
    assert header(b"trace", "a") in copy.headers.entries


def test_the_copy_of_a_message_that_cannot_be_read_keeps_id_and_key_where_those_can():
    cut_short = Header(b"numbers", b"A\x00\x00\x00\x02l\x01")
    data = properties.write("order-4711", [cut_short, header(envelope.KEY, "customer-7")])
    arrived = Arrived(1, False, data, b"body", b"\x00\x06orders")
    unread = envelope.not_read("orders", None, arrived, ValueError("odd"))
    copy = properties.read(envelope.copied(envelope.of_delivery(unread), Counters()))
    assert (unread.id, copy.id) == ("order-4711", "order-4711")
    assert properties.text_of(dict(copy.headers.entries), envelope.KEY) == "customer-7"
