"""What was handed out and did not reach the consumer is not held for ever; what is held is renewed, whatever fails beside it."""

import asyncio

import pytest
from nats import errors

from tests.fault.nats.test_server import cut
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import Counters
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until

ALONE = Counters(attempts=1, alone=True)
NOT_NOW = BrokerUnavailable("Not now.")


def fails(*_: object) -> None:
    raise NOT_NOW


def held(broker, count: int, counters: Counters | None = None) -> list:
    """So many messages that were fetched; if there are counters, settled again with these."""
    broker.publish(given.messages("orders", count))
    deliveries = list(broker.fetch("orders", count))
    assert len(deliveries) == count
    if counters is not None:
        broker.settle(Settlement(kept=[Kept(delivery, counters) for delivery in deliveries]))
    return deliveries


def leased(broker) -> int:
    return sum(len(each.leases) for each in broker.known["orders"].subscriptions)


def never_answered(error: type[BaseException]):
    async def flush(seconds: int) -> None:
        raise error

    return flush


@pytest.mark.parametrize("error", [errors.FlushTimeoutError, errors.ConnectionClosedError, asyncio.CancelledError, OSError])
def test_a_server_that_does_not_confirm_what_it_read_is_unavailable(lab, monkeypatch, error):
    broker = lab.broker("orders")
    (delivery,) = held(broker, 1)
    with monkeypatch.context() as patch:
        patch.setattr(broker.client.connection()._client, "flush", never_answered(error))
        with pytest.raises(BrokerUnavailable, match=r"did not answer \(flush\): .+\.$"):
            broker.known["orders"].work.cancel()
    broker.settle(Settlement(gone=[delivery]))


@pytest.mark.parametrize("step", ["ask", "listen"])
def test_what_was_taken_before_the_trouble_is_fetched_and_the_trouble_is_told_by_the_next_fetch(lab, monkeypatch, step):
    broker = lab.broker("orders")
    assert list(broker.fetch("orders", 10)) == []  # from now on retries come by themselves
    broker._keeper.close()  # it would give the retry back if this test is slow
    again = broker.known["orders"].again
    broker.publish(given.messages("orders", 1))
    (delivery,) = broker.fetch("orders", 10)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1))]))
    wait_until(lambda: again.buffer, lambda: "The retry does not come")
    with monkeypatch.context() as patch:
        patch.setattr(broker.known["orders"].work, step, fails)
        (retry,) = broker.fetch("orders", 10)
    with pytest.raises(BrokerUnavailable, match="Not now"):
        broker.fetch("orders", 10)
    assert list(broker.fetch("orders", 10)) == []
    broker.settle(Settlement(gone=[retry]))
    assert leased(broker) == 0


def test_a_suspect_that_could_not_be_shown_is_not_held_and_was_not_started(lab, monkeypatch):
    broker = lab.broker("orders")
    held(broker, 1, ALONE)
    wait_until(lambda: broker.has_suspect("orders"), lambda: "There is no suspect")
    with monkeypatch.context() as patch:
        patch.setattr(broker.known["orders"].suspects, "show", fails)
        with pytest.raises(BrokerUnavailable, match="Not now"):
            broker.take_suspect("orders", "host:1")
    assert leased(broker) == 0
    assert broker.has_suspect("orders")
    suspect = broker.take_suspect("orders", "host:1")
    assert (suspect.body, suspect.counters.losses, suspect.counters.history) == (b"0", 0, ())
    broker.settle(Settlement(gone=[suspect]))


def test_a_suspect_that_came_late_is_taken_before_another_one_is_asked_for(lab):
    broker = lab.broker("orders")
    held(broker, 2, ALONE)
    suspects = broker.known["orders"].suspects.subscription
    wait_until(lambda: broker.has_suspect("orders"), lambda: "There is no suspect")
    suspects.wait(suspects.ask(1))
    assert len(suspects.buffer) == 1
    assert broker.take_suspect("orders", "host:1") is not None
    assert not suspects.buffer
    assert suspects.info()["num_ack_pending"] == 1


def test_a_consumer_of_suspects_that_was_deleted_is_made_anew(lab):
    broker = lab.broker("orders")
    assert not broker.has_suspect("orders")
    broker.client.connection().ask(f"CONSUMER.DELETE.{broker.known['orders'].suspects.subscription.name}")
    with pytest.raises(BrokerUnavailable, match="created again"):
        broker.has_suspect("orders")
    assert not broker.has_suspect("orders")


def test_a_consumer_that_was_deleted_while_we_were_cut_off_is_made_anew(lab):
    broker = lab.broker("orders")
    deliveries = held(broker, 1)
    work = broker.known["orders"].work.name
    cut(broker)
    lab.broker().client.connection().ask(f"CONSUMER.DELETE.{work}")
    with pytest.raises(BrokerUnavailable, match="created again"):
        broker.settle(Settlement(gone=deliveries))
    with pytest.raises(OwnershipLost):
        broker.settle(Settlement(gone=deliveries))
    assert [delivery.body for delivery in broker.fetch("orders", 1)] == [b"0"]


def test_a_durable_consumer_that_cannot_be_renewed_does_not_keep_others_from_it(lab, monkeypatch):
    broker = lab.broker("orders")
    held(broker, 1, ALONE)
    wait_until(lambda: broker.has_suspect("orders"), lambda: "There is no suspect")
    assert broker.take_suspect("orders", "host:1") is not None
    source = broker.known["orders"]
    until = list(source.suspects.subscription.leases.until.values())
    monkeypatch.setattr(source.work, "verify", fails)
    with pytest.raises(BrokerUnavailable, match="Not now"):
        source.renew()
    assert list(source.suspects.subscription.leases.until.values()) > until
