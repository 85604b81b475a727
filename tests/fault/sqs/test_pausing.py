"""While a source is paused, what SQS would count against a message if it were handed back stays here, and is renewed."""

import time

import pytest

from tests.contract.sqs_lab import SHORT_VISIBILITY, SQSLab
from tests.fault.sqs.test_sizes import as_large_as_can_be
from unpoison.brokers.sqs.broker import SQSBroker
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import UNTRIED, Counters, Outgoing
from unpoison.port.broker import Depth, Kept, Settlement
from unpoison.port.copying import leased_broker
from unpoison.port.copying.leases import Leases
from unpoison.port.takeovers import CameBack
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until

FIFO = "orders.fifo"
KEYS = "abc"


def numbered(source, count, first=0):
    return [Outgoing(f"id-{n}", source, b"%d" % n, KEYS[n % len(KEYS)]) for n in range(first, first + count)]


def pause(broker, source, unstarted):
    """As the consumer does."""
    broker.pause(source)
    if unstarted:
        broker.settle(Settlement(kept=[Kept(each, each.counters) for each in unstarted]))


def receives_of(delivery):
    return delivery.receipt.envelope["Attributes"]["ApproximateReceiveCount"]


def drained(broker, source, count):
    found = []

    def all_came():
        deliveries = broker.fetch(source, 10)
        broker.settle(Settlement(gone=deliveries))
        found.extend(deliveries)
        return len(found) >= count

    wait_until(all_came, lambda: f"Only {len(found)} of {count} came")
    return found


def expect_in_order(found, count):
    for key in KEYS:
        of_key = [int(each.body) for each in found if each.key == key]
        assert of_key == sorted(of_key), f"key {key!r}"
    assert sorted(int(each.body) for each in found) == list(range(count))


def test_twenty_pauses_of_a_fifo_queue_count_nothing_and_keep_the_order_of_each_key(lab):
    broker = lab.broker(FIFO)
    given.publish(broker, numbered(FIFO, 30))
    done = []
    for number in range(20):
        deliveries = list(broker.fetch(FIFO, 2 if number % 3 else 5))  # of five that are held, some are left
        done += deliveries[: number % 2]
        broker.settle(Settlement(gone=deliveries[: number % 2]))
        pause(broker, FIFO, deliveries[number % 2 :])
        broker.resume(FIFO)
    done += drained(broker, FIFO, 30 - len(done))
    expect_in_order(done, 30)
    assert {receives_of(each) for each in done} == {"1"}
    assert {each.counters for each in done} == {UNTRIED}
    assert broker.depth(FIFO).empty


def test_probes_of_a_paused_fifo_queue_come_in_order_from_what_is_held_and_one_at_a_time(lab):
    broker = lab.broker(FIFO)
    given.publish(broker, [Outgoing(f"id-{n}", FIFO, b"%d" % n, "a") for n in range(6)])
    pause(broker, FIFO, broker.fetch(FIFO, 3))
    probes = []
    for _ in range(3):
        (probe,) = broker.fetch(FIFO, 1)
        probes.append(probe)
        broker.settle(Settlement(gone=[probe]))
    broker.resume(FIFO)
    assert [each.body for each in (*probes, *drained(broker, FIFO, 3))] == [b"%d" % n for n in range(6)]


def test_a_probe_that_is_handed_back_goes_before_the_others_of_its_key(lab):
    broker = lab.broker(FIFO)
    given.publish(broker, [Outgoing(f"id-{n}", FIFO, b"%d" % n, "a") for n in range(3)])
    pause(broker, FIFO, broker.fetch(FIFO, 3))
    (probe,) = broker.fetch(FIFO, 1)
    broker.settle(Settlement(kept=[Kept(probe, probe.counters)]))
    broker.resume(FIFO)
    assert [each.body for each in drained(broker, FIFO, 3)] == [b"0", b"1", b"2"]


def test_what_was_kept_in_a_pause_waits_for_its_fetch_however_slowly_the_source_begins_again(lab, monkeypatch):
    """Handed back meanwhile, as what nobody fetches is, it would be counted as received once more."""
    monkeypatch.setattr(leased_broker, "GIVE_BACK_AFTER", 0.0)
    broker = lab.broker(FIFO)
    given.publish(broker, numbered(FIFO, 6))
    pause(broker, FIFO, broker.fetch(FIFO, 6))
    broker.resume(FIFO)
    done = []
    for _ in range(6):
        broker._look_after()
        (delivery,) = broker.fetch(FIFO, 1)
        broker.settle(Settlement(gone=[delivery]))
        done.append(delivery)
    expect_in_order(done, 6)
    assert {receives_of(each) for each in done} == {"1"}
    assert broker.depth(FIFO).empty


def test_what_comes_after_a_pause_and_is_not_fetched_goes_back_and_what_was_kept_stays(lab, monkeypatch):
    monkeypatch.setattr(leased_broker, "GIVE_BACK_AFTER", 0.0)
    broker = lab.broker(FIFO)
    given.publish(broker, numbered(FIFO, 3))
    pause(broker, FIFO, broker.fetch(FIFO, 3))
    broker.resume(FIFO)
    given.publish(broker, [Outgoing("late", FIFO, b"late", "another")])
    broker.known[FIFO].work.pull(4)
    broker._look_after()
    assert len(broker.known[FIFO].work.buffer) == 3
    (late,) = lab.broker(FIFO).fetch(FIFO, 10)
    assert late.body == b"late"
    broker.close()
    expect_in_order(drained(lab.broker(FIFO), FIFO, 3), 3)


@pytest.mark.long
@pytest.mark.parametrize("source", [FIFO, "orders"])
def test_what_is_held_is_renewed_during_a_pause_that_is_longer_than_its_visibility(tmp_path, elasticmq, source):
    with SQSLab(elasticmq, tmp_path, visibility=SHORT_VISIBILITY) as lab:
        broker, other = lab.broker(source), lab.broker(source)
        assert isinstance(broker, SQSBroker)
        given.publish(broker, numbered(source, 4))
        running, *unstarted = broker.fetch(source, 4)
        pause(broker, source, unstarted)
        time.sleep(2 * SHORT_VISIBILITY)  # nothing tells when SQS would hand it out again
        taken = other.fetch(source, 10)
        assert {each.counters for each in taken} <= {UNTRIED}
        assert len(taken) == (0 if source == FIFO else 3)
        other.settle(Settlement(gone=taken))
        broker.settle(Settlement(gone=[running]))
        broker.resume(source)
        left = drained(broker, source, 3 - len(taken))
        assert {each.counters for each in left} <= {UNTRIED}


def test_when_nobody_may_hold_it_for_longer_all_that_waits_goes_back_in_its_place(lab, monkeypatch):
    """After twelve hours; here the end comes when the test says so."""
    broker = lab.broker(FIFO)
    given.publish(broker, numbered(FIFO, 6))
    running, *unstarted = broker.fetch(FIFO, 6)
    pause(broker, FIFO, unstarted)
    assert broker.known[FIFO].work.buffer
    ends = unstarted[2].receipt.handle
    monkeypatch.setattr(Leases, "is_ending", lambda leases, handle, within: handle == ends)
    wait_until(lambda: not broker.known[FIFO].work.buffer, lambda: "It is kept")
    broker.settle(Settlement(gone=[running]))
    found = drained(lab.broker(FIFO), FIFO, 5)
    expect_in_order([running, *found], 6)
    assert {each.counters.vanished for each in found} == {1}, "SQS has counted it, and nothing can be done about that"


def test_a_lease_is_ending_once_it_cannot_be_renewed_and_is_about_to_end():
    now = [0.0]
    leases = Leases[str](30.0, 100.0, clock=lambda: now[0])
    leases.take(["one"], 0.0)
    answers = []
    for now[0] in (10.0, 30.0, 50.0, 69.0, 71.0, 90.0):
        leases.renewed(leases.renewable(), now[0])
        answers.append(leases.is_ending("one", 5.0))
    assert answers == [False, False, False, False, False, True]


def test_a_consumer_that_stops_while_its_fifo_source_is_paused_gives_everything_back_in_its_place(lab):
    broker = lab.broker(FIFO)
    given.publish(broker, numbered(FIFO, 9))
    pause(broker, FIFO, broker.fetch(FIFO, 5))
    (probe,) = broker.fetch(FIFO, 1)
    broker.settle(Settlement(gone=[probe]))
    broker.close()
    expect_in_order([probe, *drained(lab.broker(FIFO), FIFO, 8)], 9)


def test_a_message_that_has_no_room_for_a_copy_is_held_and_not_charged_for_pauses(lab):
    """Handed back as it is, each receive would count as an attempt."""
    broker = lab.broker("orders")
    lab.queue("orders").send(as_large_as_can_be({}))
    for _ in range(4):
        deliveries = list(broker.fetch("orders", 1))
        assert [(each.counters, receives_of(each)) for each in deliveries] == [(UNTRIED, "1")]
        pause(broker, "orders", deliveries)
        broker.resume("orders")
    assert len(drained(broker, "orders", 1)) == 1
    assert broker.depth("orders").empty


def test_what_a_standard_queue_had_read_ahead_goes_back_as_copies_and_stays_uncounted(lab):
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 120))
    deliveries = list(broker.fetch("orders", 40))  # so many that the next ones are received ahead
    pause(broker, "orders", deliveries)
    wait_until(lambda: broker.depth("orders") == Depth(ready=120), lambda: f"{broker.depth('orders')}")
    (probe,) = broker.fetch("orders", 1)
    assert not broker.known["orders"].work.buffer
    broker.settle(Settlement(gone=[probe]))
    found = drained(lab.broker("orders"), "orders", 119)
    assert {each.counters for each in (probe, *found)} == {UNTRIED}
    assert {receives_of(each) for each in found} == {"1"}


def test_a_paused_source_finds_a_probe_among_what_still_has_to_be_moved(lab):
    """A letter that was sent again waits in a queue of its own until a consumer moves it."""
    given.dead_letters(lab, "orders", [b"letter"])
    broker = lab.broker("orders")
    broker.pause("orders")
    assert not broker.fetch("orders", 1)
    lab.dlq("orders").replay_all()
    found = []
    wait_until(lambda: found.extend(broker.fetch("orders", 1)) or found, lambda: "No probe comes")
    assert [(each.body, each.counters.replays) for each in found] == [(b"letter", 1)]
    broker.settle(Settlement(gone=found))


def test_while_it_is_paused_and_empty_no_request_is_left_at_the_server(proxied_lab):
    broker = proxied_lab.broker("orders")
    assert not broker.fetch("orders", 1)
    broker.pause("orders")
    work, moved = broker.known["orders"].work, broker.known["orders"].mover.subscriptions
    assert not broker.fetch("orders", 1)
    assert not any(each.is_listening for each in (work, *moved))


def test_what_cannot_be_handed_back_for_now_goes_back_later_and_once(proxied_lab):
    lab = proxied_lab
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 3))
    held = list(broker.fetch("orders", 1))
    work = broker.known["orders"].work
    work.pull(2)
    lab.proxy.denies = lambda operation, queue: operation.startswith("SendMessage")
    with pytest.raises(BrokerUnavailable, match="not authorized"):
        broker.pause("orders")
    lab.proxy.denies = lambda operation, queue: False
    wait_until(lambda: not broker._unreturned, lambda: "They are not handed back")
    broker.settle(Settlement(gone=held))
    found = drained(lab.broker("orders"), "orders", 2)
    assert {each.counters for each in found} == {UNTRIED}
    assert len({each.id for each in found}) == 2
    assert broker.depth("orders").empty


def test_a_message_that_came_back_is_told_of_once_however_often_its_source_is_paused(lab, monkeypatch):
    vanishing, broker = lab.broker(FIFO), lab.broker(FIFO)
    given.publish(vanishing, numbered(FIFO, 2))
    assert len(vanishing.fetch(FIFO, 2)) == 2
    vanishing.close()
    told = []
    monkeypatch.setattr(CameBack, "note", lambda came_back, source, count=1: told.append(count))
    for _ in range(3):
        deliveries = broker.fetch(FIFO, 2)
        assert {each.counters for each in deliveries} == {Counters(vanished=1)}
        pause(broker, FIFO, deliveries)
        broker.resume(FIFO)
    assert sum(told) == 2


def test_the_retention_of_a_queue_is_told(tmp_path, moto):
    with SQSLab(moto, tmp_path) as lab:
        lab.queue("orders").create(MessageRetentionPeriod="3600")
        for source, seconds in (("orders", 3600), (FIFO, 14 * 86_400)):
            broker = lab.broker(source)
            assert isinstance(broker, SQSBroker)
            assert broker.deletes_after(source) == seconds
