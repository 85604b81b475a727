"""A source can be paused, as often and for as long as it takes: nobody is charged or suspected for it, and others go on.

A consumer that pauses has its broker stop reading ahead, if it does that at all, hands back what it has not started, and fetches
no more than a probe.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from unpoison.app import App
from unpoison.app_internals import consumers_of, runnable
from unpoison.control.changes import OperatorPause
from unpoison.control.source import SourceControl
from unpoison.flow.consumer import Consumer
from unpoison.model.message import UNTRIED, Counters, Delivery, Outgoing
from unpoison.port.broker import Broker, Depth, Forgets, Kept, ReadsAhead, Settlement
from unpoison.reporting.report import Report
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.workers.interface import Bell

if TYPE_CHECKING:
    from unpoison.flow.store_link import StoreLink

MANY = 20
HOUR = 3600.0
LONGER_THAN_A_LEASE = 4.0
"""Seconds, where the lab lets a takeover take two."""


def pause(broker: Broker, unstarted: Sequence[Delivery] = (), source: str = "orders") -> None:
    if isinstance(broker, ReadsAhead):
        broker.pause(source)
    if unstarted:
        broker.settle(Settlement(kept=[Kept(delivery, delivery.counters) for delivery in unstarted]))


def resume(broker: Broker, source: str = "orders") -> None:
    if isinstance(broker, ReadsAhead):
        broker.resume(source)


def pause_and_resume(broker: Broker, unstarted: Sequence[Delivery] = ()) -> None:
    pause(broker, unstarted)
    resume(broker)


def taken(broker: Broker, count: int, at_once: int = 10, source: str = "orders") -> list[Delivery]:
    """So many messages, once they have come."""
    found: list[Delivery] = []

    def all_came() -> bool:
        found.extend(broker.fetch(source, min(at_once, count - len(found))))
        return len(found) == count

    wait_until(all_came, lambda: f"Only {len(found)} of {count} came")
    return found


def handled(broker: Broker, count: int) -> list[Delivery]:
    """Everything that is left, which must be so much, and nobody the worse for it. It is settled."""
    found = taken(broker, count)
    if found:
        broker.settle(Settlement(gone=found))
    assert Counter(delivery.counters for delivery in found) == Counter({UNTRIED: count} if count else {})
    assert not broker.fetch("orders", 10)
    return found


def test_a_source_that_is_paused_again_and_again_makes_nobody_returned_and_charges_nobody(lab: Lab) -> None:
    pause_with_messages_read_ahead(lab, pauses=4)


def test_a_source_that_is_paused_twenty_times_makes_nobody_returned_and_charges_nobody(lab: Lab) -> None:
    pause_with_messages_read_ahead(lab, pauses=MANY)


def pause_with_messages_read_ahead(lab: Lab, *, pauses: int) -> None:
    broker = lab.broker("orders")
    sent = [Outgoing(f"id-{number}", "orders", b"%d" % number, "a key", {"trace": "x\n"}) for number in range(3 * pauses)]
    given.publish(broker, sent)
    done: list[Delivery] = []
    for _ in range(pauses):
        deliveries = list(broker.fetch("orders", 4))
        broker.settle(Settlement(gone=deliveries[:2]))  # from now on others are read ahead in their place
        done += deliveries[:2]
        pause_and_resume(broker, deliveries[2:])
    done += handled(broker, len(sent) - len(done))
    assert Counter((each.id, each.body, each.key, each.attempt, each.returned) for each in done) == Counter(
        (each.id, each.body, each.key, 1, False) for each in sent
    )
    assert all(dict(each.headers) == {"trace": "x\n"} for each in done)
    lab.expect_depth(broker, "orders", Depth())


def test_pauses_leave_what_waits_and_what_must_run_alone_as_it_was(lab: Lab) -> None:
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 4))
    alone, late, failed, fresh = taken(broker, 4)
    suspected, counted = Counters(attempts=1, alone=True), Counters(attempts=2, vanished=1, interrupted=3, first_failed_at=12.5)
    kept = [Kept(alone, suspected), Kept(late, counted, HOUR), Kept(failed, counted), Kept(fresh, fresh.counters)]
    broker.settle(Settlement(kept=kept))
    for _ in range(3):
        pause_and_resume(broker, broker.fetch("orders", 10))
    found = taken(broker, 2)
    assert {each.body: each.counters for each in found} == {failed.body: counted, fresh.body: UNTRIED}
    broker.settle(Settlement(gone=found))
    suspect = given.suspect(broker, "orders")
    assert (suspect.body, suspect.counters) == (alone.body, suspected)
    broker.settle(Settlement(gone=[suspect]))
    lab.expect_depth(broker, "orders", Depth(delayed=1))


def test_a_paused_source_gives_the_probe_that_is_asked_for_and_keeps_nothing_else(lab: Lab) -> None:
    broker, other = lab.broker("orders"), lab.broker("orders")
    given.publish(other, given.messages("orders", 8))
    (first,) = taken(broker, 1)
    broker.settle(Settlement(gone=[first]))
    pause(broker)
    pause(broker)
    (probe,) = taken(broker, 1)
    assert probe.counters == UNTRIED
    found: list[Delivery] = []
    if lab.shares_by_turns:
        found += handled(other, 6)
        given.publish(other, given.messages("orders", 1, first=8))
        found += handled(other, 1)
        pause(other)  # else it reads the next one ahead, and hands it back after a while
        given.publish(other, given.messages("orders", 1, first=9))
        found += taken(broker, 1)
    broker.settle(Settlement(gone=[probe, *found[7:]]))  # what was handed out is ours, paused or not
    resume(broker)
    resume(broker)
    if not lab.shares_by_turns:
        found += handled(broker, 6)
    assert len({each.body for each in (first, probe, *found)}) == 2 + len(found)
    lab.expect_depth(other, "orders", Depth())


def test_each_probe_of_a_paused_source_is_another_message_and_one_that_fails_goes_behind_the_others(lab: Lab) -> None:
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 5))
    pause(broker, taken(broker, 2))
    probes: list[Delivery] = []
    for _ in range(4):
        probes += taken(broker, 1)
        broker.settle(Settlement(kept=[Kept(probes[-1], Counters(attempts=1), HOUR)]))
    assert len({each.body for each in probes}) == 4
    assert Counter(each.counters for each in probes) == Counter({UNTRIED: 4})
    resume(broker)
    handled(broker, 1)
    lab.expect_depth(broker, "orders", Depth(delayed=4))


def test_a_consumer_that_stops_while_its_source_is_paused_leaves_everything_uncounted(lab: Lab) -> None:
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 10))
    deliveries = taken(broker, 4)
    broker.settle(Settlement(gone=deliveries[:2]))
    pause(broker, deliveries[2:])
    (probe,) = taken(broker, 1)
    broker.settle(Settlement(kept=[Kept(probe, probe.counters)]))
    broker.close()
    handled(lab.broker("orders"), 8)


def test_pauses_while_messages_arrive_make_nobody_returned(lab: Lab) -> None:
    pause_amid_traffic(lab, pauses=3, rate=300)


def test_twenty_pauses_while_messages_arrive_make_nobody_returned(lab: Lab) -> None:
    pause_amid_traffic(lab, pauses=MANY, rate=100)


def pause_amid_traffic(lab: Lab, *, pauses: int, rate: int) -> None:
    """The consumer keeps up with what arrives, so that it always waits for the next message when it is paused."""
    broker, publisher = lab.broker("orders"), lab.broker("orders")
    ended, sent = threading.Event(), 0
    seen: list[Delivery] = []

    def publish() -> None:
        nonlocal sent
        while not ended.wait(1 / rate):
            given.publish(publisher, given.messages("orders", 1, first=sent))
            sent += 1

    def handle_for(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if deliveries := list(broker.fetch("orders", 100)):
                seen.extend(deliveries)
                broker.settle(Settlement(gone=deliveries))

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        for _ in range(pauses):
            handle_for(0.1)
            pause_and_resume(broker)
    finally:
        ended.set()
        publishing.join()
    seen += handled(broker, sent - len(seen))
    assert Counter(int(each.body) for each in seen) == Counter(range(sent))
    assert Counter(each.counters for each in seen) == Counter({UNTRIED: sent})


@trait(Trait.TAKEOVER)
def test_a_pause_longer_than_a_lease_takes_nothing_from_its_owner_and_charges_nobody(lab: Lab) -> None:
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 10))
    running, *others = taken(broker, 3)
    pause(broker, others)
    (probe,) = taken(broker, 1)
    time.sleep(LONGER_THAN_A_LEASE)  # nothing tells when a lease is over but that others get the message
    if lab.shares_by_turns:
        other = lab.broker("orders")
        (another,) = other.fetch("orders", 1)
        assert another.counters == UNTRIED
        other.settle(Settlement(gone=[another]))
    broker.settle(Settlement(gone=[running, probe]))
    resume(broker)
    handled(broker, 7 if lab.shares_by_turns else 8)
    lab.expect_depth(broker, "orders", Depth())


class Switch:
    """Pauses and resumes a source, as an operator does by way of the store."""

    def __init__(self) -> None:
        self.pause: OperatorPause | None = None

    def sync(self, control: SourceControl) -> None:
        control.pause_by_operator(self.pause, time.monotonic())


def test_a_consumer_that_is_paused_again_and_again_starts_each_message_once(lab: Lab) -> None:
    starts: list[tuple[int, int, bool]] = []

    def handle(number: int, delivery: Delivery) -> None:
        starts.append((number, delivery.attempt, delivery.returned))
        time.sleep(0.02)  # so that several are in hand and not started when it is paused

    app, switch, broker = given.consumer(lab.app(prefetch=16), "orders", handle), Switch(), lab.broker("orders")
    app.publish_many("orders", range(20))
    consumer = consumer_with(app, broker, switch)
    while len(starts) < 20:
        consumer.step()
        switch.pause = OperatorPause("ana@desk", "migration", 1.0)
        started = len(starts)
        assert consumer.turn() is False
        assert len(starts) == started
        switch.pause = None
    while consumer.turn():
        pass
    assert Counter(starts) == Counter((number, 1, False) for number in range(20))
    lab.expect_depth(broker, "orders", Depth())


def consumer_with(app: App, broker: Broker, switch: Switch) -> Consumer:
    bell, options = Bell(), consumers_of(app)["orders"].options
    started = runnable(app).start_workers(options, broker, bell)
    return Consumer(
        options, broker, started.workers, Report(), started.hooks, bell.ring, link=cast("StoreLink", switch), name="here"
    )


def test_a_broker_that_forgets_says_after_how_long(lab: Lab) -> None:
    """Of a source as unpoison makes it."""
    broker = lab.broker("orders")
    if isinstance(broker, Forgets):
        after = broker.deletes_after("orders")
        assert after is None or after >= 24 * HOUR
