"""What if NATS is restarted, killed, cut off, or loses a stream under a consumer? Nothing is lost and nothing spins."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.contract.nats_lab import SHORT_ACK_WAIT, NATSLab
from tests.fault.scenes import consumed_through_a_restart
from tests.servers_plugin import private_or_skip
from unpoison.brokers.nats.broker import NATSBroker
from unpoison.brokers.nats.subscription import ACK
from unpoison.errors import BrokerUnavailable, ConfigError, OwnershipLost
from unpoison.model.message import Counters
from unpoison.port.broker import Depth, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Running, drained

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=["nats", pytest.param("nats-2.9", marks=pytest.mark.long)])
def server(request):
    with private_or_skip(request.param) as server:
        yield server


@pytest.fixture
def lab(tmp_path, server):
    with NATSLab(server, tmp_path, SHORT_ACK_WAIT) as lab:
        yield lab


@pytest.fixture
def patient(tmp_path, server):
    """A lab in which a consumer that cannot reach its server keeps its messages for long."""
    with NATSLab(server, tmp_path, ack_wait=60.0) as lab:
        yield lab


@pytest.mark.parametrize("stop", ["stop", "kill_hard"])
def test_a_consumer_outlives_its_server_and_no_message_is_lost(patient, server, stop):
    def restart():
        getattr(server, stop)()
        server.start()

    done = consumed_through_a_restart(patient.app(prefetch=16), restart, delay=3, within=90)
    assert max(Counter(done).values()) <= 2
    assert patient.dlq("orders").count() == 0


def test_a_waiting_consumer_hears_of_messages_after_its_server_was_killed(lab, server):
    rung = threading.Event()
    broker = lab.broker("orders", ring=rung.set)
    assert list(broker.fetch("orders", 10)) == []
    with server.down(), pytest.raises(BrokerUnavailable):
        broker.fetch("orders", 10)
    assert list(broker.fetch("orders", 10)) == []  # which is how it listens again
    rung.clear()
    lab.broker("orders").publish(given.messages("orders", 1))
    assert [delivery.body for delivery in given.fetched_when_rung(broker, "orders", rung)] == [b"0"]


def test_while_the_server_is_gone_everything_says_so_at_once(patient, server):
    broker = patient.broker("orders")
    broker.publish(given.messages("orders", 1))
    (held,) = broker.fetch("orders", 1)
    with stopped(server):
        with pytest.raises(BrokerUnavailable):
            given.publish(broker, given.messages("orders", 1))
        with pytest.raises(BrokerUnavailable):
            broker.settle(Settlement(gone=[held]))
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            NATSBroker(patient.url).open(["orders"])
    broker.settle(Settlement(gone=[held]))
    assert broker.depth("orders") == Depth()


def test_a_connection_that_is_cut_costs_no_message_and_no_start(patient):
    broker = patient.broker("orders")
    broker.publish(given.messages("orders", 4))
    held = list(broker.fetch("orders", 10))
    cut(broker)
    broker.settle(Settlement(gone=held[:2], kept=[Kept(held[2], Counters(attempts=1))]))
    assert [(each.body, each.counters) for each in broker.fetch("orders", 10)] == [(b"2", Counters(attempts=1))]
    broker.extend(held[3:])
    broker.settle(Settlement(gone=held[3:]))
    assert broker.depth("orders").ready == 0


def test_a_consumer_that_is_cut_off_for_too_long_knows_that_it_lost_its_messages(lab, server):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 2))
    held = list(broker.fetch("orders", 10))
    with server.down():
        wait_until(lambda: not any(each.receipt.holder.held([each.receipt]) for each in held), lambda: "It holds them")
    with pytest.raises(OwnershipLost):
        broker.settle(Settlement(gone=held))
    seen: list[int] = []
    drained(given.consumer(lab.app(), "orders", seen.append, schema=int))
    assert sorted(seen) == [0, 1]


def test_a_late_acknowledgement_that_reaches_the_server_all_the_same_loses_nothing(lab):
    """NATS asks nobody whether the message is still theirs. What was acknowledged late was done, or stored, before."""
    stale, owner = lab.broker("orders"), lab.broker("orders")
    stale.publish(given.messages("orders", 1))
    (held,) = stale.fetch("orders", 1)
    lab.steal(stale, [held])
    (taken,) = owner.fetch("orders", 1)
    held.receipt.holder.send([held.receipt.handle], ACK)
    owner.settle(Settlement(kept=[Kept(taken, Counters(attempts=1))]))
    (again,) = owner.fetch("orders", 10)
    assert (again.body, again.counters.attempts) == (b"0", 1)


def test_a_delay_survives_a_kill_of_the_server_and_ends_in_time(lab, server):
    app, published = lab.app(), time.time()
    app.publish("orders", 1, delay=1.0)
    app.publish("orders", 2, delay=3600)
    app.close()
    with server.down():
        pass
    assert lab.broker("orders").depth("orders").delayed >= 1
    seen: list[tuple[int, bool]] = []

    def handle(number: int) -> None:
        seen.append((number, time.time() >= published + 1.0))

    with Running(given.consumer(lab.app(), "orders", handle)) as running:
        wait_until(lambda: seen, lambda: "It is not delivered")
        running.run.stop()
        running.wait()
    assert seen == [(1, True)]
    assert lab.broker("orders").depth("orders").delayed == 1


def test_a_stream_that_was_deleted_is_made_anew(lab):
    broker = lab.broker("orders")
    assert list(broker.fetch("orders", 1)) == []
    for stream in ("orders", "orders_unpoison_RETRIES", "orders_DLQ"):
        broker.client.connection().ask(f"STREAM.DELETE.{stream}")
    publisher = lab.app()
    publisher.publish("orders", 1)
    seen: list[int] = []
    app = given.consumer(lab.app(), "orders", seen.append, schema=int)
    broker.client.connection().ask("STREAM.DELETE.orders")
    publisher.publish("orders", 2)
    drained(app)
    assert seen == [2]


def test_a_consumer_of_the_server_that_was_deleted_is_made_anew(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    broker.client.connection().ask("CONSUMER.DELETE.orders.unpoison")
    with pytest.raises(BrokerUnavailable, match="created again"):
        broker.fetch("orders", 1)
    assert [delivery.body for delivery in broker.fetch("orders", 1)] == [b"0"]


def test_a_login_that_is_refused_is_told_apart_from_a_server_that_is_gone(lab, server):
    with pytest.raises(ConfigError, match="refuses the login"):
        NATSBroker(f"nats://test:wrong@127.0.0.1:{server.port}").open(["orders"])


@contextmanager
def stopped(server) -> Iterator[None]:
    """Stopped in order inside the block, there again after it. One that is killed may forget what it has just handed out: it
    writes that down later. Then what we hold is lost, and it is right to say so."""
    server.stop()
    try:
        yield
    finally:
        server.start()


def cut(broker: NATSBroker) -> None:
    connection = broker.client.connection()
    writer = connection._client._transport._io_writer
    writer.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    wait_until(lambda: not connection.is_open, lambda: "It is connected")
