"""A paused consumer has no request at the server and holds nothing but what was fetched, whatever goes wrong meanwhile."""

import time
from contextlib import suppress

import pytest

from tests.contract.nats_lab import SHORT_ACK_WAIT, NATSLab
from tests.fault.nats.test_server import cut
from tests.servers_plugin import private_or_skip
from unpoison.brokers.nats.broker import NATSBroker
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import UNTRIED, Counters
from unpoison.port.broker import Depth, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until


def at_the_server(broker, field):
    """How many requests (num_waiting) or messages in hand (num_ack_pending) the server knows of, for each durable consumer."""
    return [pulled.info()[field] for pulled in broker.known["orders"].pulled]


def waiting_here(broker):
    return sum(len(pulled.buffer) for pulled in broker.known["orders"].pulled)


@pytest.fixture
def broker(lab):
    """With a request for the next message at the server, and one that it has brought."""
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 1))
    assert len(broker.fetch("orders", 10)) == 1
    given.publish(lab.broker("orders"), given.messages("orders", 3, first=1))
    wait_until(lambda: waiting_here(broker) == 1, lambda: "It does not come")
    return broker


def test_a_paused_consumer_has_no_request_at_the_server_and_hands_back_what_a_request_has_brought(lab, broker):
    broker.pause("orders")
    assert at_the_server(broker, "num_waiting") == [0, 0, 0]
    assert at_the_server(broker, "num_ack_pending") == [1, 0, 0], "the one that was fetched is ours"
    (probe,) = broker.fetch("orders", 1)
    assert probe.counters == UNTRIED
    assert at_the_server(broker, "num_waiting") == [0, 0, 0]
    assert sum(at_the_server(broker, "num_ack_pending")) == 2
    broker.settle(Settlement(gone=[probe]))


def test_an_empty_source_is_asked_for_a_probe_and_leaves_no_request(lab):
    broker = lab.broker("orders")
    broker.pause("orders")
    for _ in range(3):
        assert not broker.fetch("orders", 1)
    assert at_the_server(broker, "num_waiting") == [0, 0, 0]
    given.publish(broker, given.messages("orders", 1))
    assert len(broker.fetch("orders", 1)) == 1, "what was stored by the same connection is found at once"
    assert at_the_server(broker, "num_waiting") == [0, 0, 0]


def test_a_connection_that_is_cut_while_its_source_is_paused_reads_nothing_ahead_when_it_is_back(lab, broker):
    broker.pause("orders")
    cut(broker)
    with suppress(BrokerUnavailable):
        broker.fetch("orders", 0)
    assert len(broker.fetch("orders", 1)) == 1
    assert at_the_server(broker, "num_waiting") == [0, 0, 0]
    assert waiting_here(broker) == 0


def test_what_cannot_be_handed_back_for_now_goes_back_later_and_once(lab, broker, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(broker.client, "store", _refuses)
        with pytest.raises(BrokerUnavailable, match="Not now"):
            broker.pause("orders")
    wait_until(lambda: sum(at_the_server(broker, "num_ack_pending")) == 1, lambda: "It is kept")
    found = []
    wait_until(lambda: found.extend(broker.fetch("orders", 1)) or len(found) == 3, lambda: f"Only {len(found)} of 3 came")
    assert sorted(each.body for each in found) == [b"1", b"2", b"3"]
    assert {each.counters for each in found} == {UNTRIED}


def _refuses(*_):
    raise BrokerUnavailable("Not now.")


@pytest.mark.timeout(120)
def test_a_source_that_is_paused_while_its_server_is_gone_stays_paused(tmp_path):
    with private_or_skip("nats") as server, NATSLab(server, tmp_path, ack_wait=60.0) as lab:
        broker = lab.broker("orders")
        assert isinstance(broker, NATSBroker)
        given.publish(broker, given.messages("orders", 5))
        (running,) = broker.fetch("orders", 1)
        assert not broker.known["orders"].work.buffer
        server.stop()
        try:
            with suppress(BrokerUnavailable):
                broker.pause("orders")
        finally:
            server.start()
        (probe,) = broker.fetch("orders", 1)
        assert at_the_server(broker, "num_waiting") == [0, 0, 0]
        broker.settle(Settlement(gone=[running, probe]))
        broker.resume("orders")
        assert {each.counters for each in broker.fetch("orders", 10)} == {UNTRIED}


def test_a_fetch_of_one_brings_one_though_retries_and_replays_wait_too(lab):
    broker = lab.broker("orders")
    given.dead_letters(lab, "orders", [b"replayed"])
    assert not broker.fetch("orders", 10)
    broker._keeper.close()  # it would hand back what waits here
    source = broker.known["orders"]
    given.publish(broker, given.messages("orders", 1))
    (delivery,) = broker.fetch("orders", 1)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1))]))
    lab.dlq("orders").replay_all()
    wait_until(lambda: source.again.buffer and source.replays.buffer, lambda: "They do not come")
    assert len(broker.fetch("orders", 1)) == 1


def test_what_is_held_is_renewed_during_a_pause_that_is_longer_than_ack_wait(tmp_path, nats):
    with NATSLab(nats, tmp_path, SHORT_ACK_WAIT) as lab:
        broker = lab.broker("orders")
        assert isinstance(broker, NATSBroker)
        given.publish(broker, given.messages("orders", 2))
        (running,) = broker.fetch("orders", 1)
        broker.pause("orders")
        time.sleep(2 * SHORT_ACK_WAIT)  # nothing tells when the server would take it back
        broker.settle(Settlement(gone=[running]))
        (probe,) = broker.fetch("orders", 1)
        assert probe.counters == UNTRIED
        broker.settle(Settlement(gone=[probe]))
        assert broker.depth("orders") == Depth()


def test_what_a_stream_deletes_is_told(lab):
    broker = lab.broker("orders")
    assert broker.deletes_after("orders") is None
    for stream, seconds, told in (("orders", 7200, 7200.0), ("orders_unpoison_RETRIES", 600, 600.0)):
        connection = broker.client.connection()
        config = connection.ask(f"STREAM.INFO.{stream}")["config"]
        connection.ask(f"STREAM.UPDATE.{stream}", config | {"max_age": seconds * 10**9, "duplicate_window": 10**9})
        assert broker.deletes_after("orders") == told
