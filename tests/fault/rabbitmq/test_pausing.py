"""A paused consumer has no consumer on the queue and holds nothing, whatever goes wrong meanwhile. Nothing is counted for it."""

import threading
import time

import pytest

from tests.contract.rabbitmq_lab import ClassicLab
from tests.fault.rabbitmq.amqp_proxy import AMQPProxy
from unpoison.brokers.rabbitmq import writing
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import UNTRIED, Counters
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until


def fetched(broker, count, source="orders"):
    found = []
    wait_until(
        lambda: found.extend(broker.fetch(source, count - len(found))) or len(found) == count,
        lambda: f"Only {len(found)} of {count} came",
    )
    return found


def read_ahead(broker, count):
    """One message that runs, and so many that wait in the buffer."""
    (running,) = broker.fetch("orders", count + 1)
    given.publish(broker, given.messages("orders", count, first=1))
    buffer = broker._held.subscriptions["orders"].buffer
    wait_until(lambda: len(buffer) == count, lambda: "They do not come")
    return running


@pytest.fixture
def broker(lab):
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 1))
    return broker


def waiting(raw, queue="orders"):
    return raw.queue_declare(queue, passive=True).method.message_count


def expect_no_consumer(raw):
    """To be asked while nothing is held: a quorum queue counts who holds a message too."""
    wait_until(lambda: raw.queue_declare("orders", passive=True).method.consumer_count == 0, lambda: "It still consumes")


def test_a_paused_consumer_consumes_no_more_once_a_message_has_come_and_holds_what_was_fetched_alone(lab, broker, raw):
    running = read_ahead(broker, 10)
    broker.pause("orders")
    assert waiting(raw) == 10, "others have to wait"
    given.publish(broker, given.messages("orders", 1, first=11))  # this is what the last consumer waits for
    wait_until(lambda: waiting(raw) == 11, lambda: "It keeps some")
    (probe,) = broker.fetch("orders", 1)
    assert waiting(raw) == 10
    broker.settle(Settlement(gone=[running, probe]))
    expect_no_consumer(raw)
    assert {each.counters for each in fetched(lab.broker("orders"), 10)} == {UNTRIED}


def test_a_message_that_is_taken_by_two_consumers_who_pause_amid_traffic_is_not_counted_for_it(lab):
    """The one who goes on has credit, and gets at once whatever the other one sends back."""
    pausing, going, publisher = (lab.broker("orders") for _ in range(3))
    ended, seen, sent = threading.Event(), [], [0]

    def publish():
        while not ended.wait(0.003):
            given.publish(publisher, given.messages("orders", 1, first=sent[0]))
            sent[0] += 1

    def handle(broker, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            deliveries = broker.fetch("orders", 100)
            seen.extend(deliveries)
            broker.settle(Settlement(gone=deliveries))

    threads = [threading.Thread(target=publish), threading.Thread(target=lambda: handle(going, 2.5))]
    for thread in threads:
        thread.start()
    for _ in range(4):
        handle(pausing, 0.1)
        pausing.pause("orders")
        pausing.resume("orders")
    ended.set()
    for thread in threads:
        thread.join()
    seen += fetched(pausing, sent[0] - len(seen))
    assert {each.counters for each in seen} == {UNTRIED}
    assert sorted(int(each.body) for each in seen) == list(range(sent[0]))


def test_a_connection_that_breaks_while_its_source_is_paused_brings_nothing_back_but_what_is_asked_for(lab, broker, raw):
    running = read_ahead(broker, 5)
    broker.pause("orders")
    lab.steal(broker, [running])
    with pytest.raises(OwnershipLost):
        broker.fetch("orders", 1)
    (probe,) = broker.fetch("orders", 1)
    assert (probe.body, probe.counters) == (running.body, Counters(vanished=1))
    assert waiting(raw) == 5
    broker.settle(Settlement(gone=[probe]))
    expect_no_consumer(raw)
    broker.resume("orders")
    assert {each.counters for each in fetched(broker, 5)} == {UNTRIED}


def test_a_source_that_is_paused_while_it_has_no_connection_stays_paused(lab, broker, raw):
    running = read_ahead(broker, 5)
    lab.steal(broker, [running])
    broker.pause("orders")
    with pytest.raises(OwnershipLost):
        broker.fetch("orders", 1)
    probe = broker.fetch("orders", 1)
    assert (len(probe), waiting(raw)) == (1, 5)
    broker.settle(Settlement(gone=probe))
    expect_no_consumer(raw)


def test_what_cannot_be_handed_back_for_now_goes_back_later_and_once(lab, raw, monkeypatch):
    """As while the server is short of memory: it takes no copies, and says so by silence."""
    monkeypatch.setattr(writing.Writer.wait, "__defaults__", (0.3,))
    with AMQPProxy(lab.url) as proxy:
        far = RabbitMQBroker(proxy.url)
        far.open(["orders"])
        given.publish(far, given.messages("orders", 1))
        running = read_ahead(far, 10)
        proxy.withhold_confirms()
        with pytest.raises(BrokerUnavailable, match="has not confirmed"):
            far.pause("orders")
        proxy.release_confirms()
        wait_until(lambda: not far._handing_back._rest, lambda: "They are not handed back")
        assert waiting(raw) == 10, "some were stored twice"
        far.settle(Settlement(gone=[running]))
        expect_no_consumer(raw)
        assert {each.counters for each in fetched(lab.broker("orders"), 10)} == {UNTRIED}
        far.close()


def test_a_user_who_may_consume_no_longer_can_pause_all_the_same(lab, broker, raw):
    running = read_ahead(broker, 5)
    with lab._permitting(read="^(?!orders$).*"):
        broker.pause("orders")
        broker.extend([running])
        with pytest.raises(BrokerUnavailable, match="refuses"):
            broker.fetch("orders", 1)
        broker.settle(Settlement(gone=[running]))
        expect_no_consumer(raw)
    (probe,) = broker.fetch("orders", 1)
    assert probe.counters == UNTRIED


def test_a_suspect_that_could_not_be_started_is_not_held_by_a_paused_consumer_and_not_counted(lab, broker, raw):
    (delivery,) = broker.fetch("orders", 1)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1, alone=True))]))
    with lab.nothing_can_be_published():
        broker.connections.writer().renew()  # a channel remembers for a while what it was permitted
        with pytest.raises(BrokerUnavailable):
            broker.take_suspect("orders", "here")
    broker.connections.writer().renew()
    assert waiting(raw, "orders.suspects") == 0
    broker.pause("orders")
    assert waiting(raw, "orders.suspects") == 1
    suspect = lab.broker("orders").take_suspect("orders", "there")
    assert suspect.counters == Counters(attempts=1, alone=True)


def test_a_paused_source_finds_a_probe_behind_messages_that_come_back_uncounted(tmp_path, rabbitmq):
    """A classic queue flags them, and each is stored again before it may run."""
    with ClassicLab(rabbitmq, tmp_path) as lab:
        stale, paused = lab.broker("orders"), lab.broker("orders")
        assert isinstance(paused, RabbitMQBroker)
        given.publish(stale, given.messages("orders", 20))
        lab.steal(stale, list(stale.fetch("orders", 20)))
        given.publish(paused, given.messages("orders", 1, first=20))
        paused.pause("orders")
        (probe,) = paused.fetch("orders", 1)
        assert (probe.body, probe.counters) == (b"20", UNTRIED)
        (probe,) = paused.fetch("orders", 1)
        assert (probe.body, probe.counters) == (b"0", Counters(vanished=1))


def test_from_a_queue_with_a_single_active_consumer_a_probe_is_pushed(lab, raw):
    """RabbitMQ lets nobody pull from a quorum queue of that kind, and closes the channel of who tries."""
    raw.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum", "x-single-active-consumer": True})
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 6))
    running = broker.fetch("orders", 2)
    broker.pause("orders")
    (probe,) = fetched(broker, 1)
    assert len(fetched(lab.broker("orders"), 3)) == 3
    broker.settle(Settlement(gone=[*running, probe]))
    broker.resume("orders")


def test_what_expires_is_told_with_the_time_of_the_queue(lab, rabbitmq):
    told = RabbitMQBroker(f"{lab.url}?management={rabbitmq.http_url}&message_ttl=7200")
    told.open(["orders"])
    assert told.deletes_after("orders") == 7200
    told.close()
    other, blind = (RabbitMQBroker(f"{lab.url}?management={url}") for url in (rabbitmq.http_url, "http://127.0.0.1:1"))
    assert other.deletes_after("orders") == 7200, "it was made with that, whatever this URL says"
    assert blind.deletes_after("orders") is None
    assert RabbitMQBroker(f"{lab.url}?management=http://127.0.0.1:1&message_ttl=60").deletes_after("orders") == 60


@pytest.mark.long
def test_what_expires_by_a_policy_is_told_with_the_shorter_time(lab, rabbitmq):
    broker = RabbitMQBroker(f"{lab.url}?management={rabbitmq.http_url}&message_ttl=7200")
    broker.open(["orders"])
    policy = {"pattern": "^orders$", "definition": {"message-ttl": 60_000}, "apply-to": "queues"}
    rabbitmq.http("PUT", f"/api/policies/{lab.vhost}/short", policy)
    wait_until(lambda: broker.deletes_after("orders") == 60, lambda: "The policy does not count")
    broker.close()
