"""A message has one owner at a time, which keeps it for as long as it lives; and it can be told who that is."""

import os
import socket
import threading
import time
from collections.abc import Callable

import pytest

from unpoison.errors import OwnershipLost
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Broker, Capability, Dead, Depth, ExplainsWaits, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import PATIENCE, Child, Effects, Gate
from unpoison.testing.running import Journal, Running, drained

HOUR = 3600.0

SETTLEMENTS: dict[str, Callable[[list[Delivery]], Settlement]] = {
    "done": lambda deliveries: Settlement(gone=deliveries),
    "retry": lambda deliveries: Settlement(kept=[Kept(each, Counters(attempts=1), HOUR) for each in deliveries]),
    "dead letter": lambda deliveries: Settlement(dead=[Dead(each, given.letter_of(each)) for each in deliveries]),
}


@trait(Trait.TAKEOVER)
@pytest.mark.parametrize("settlement", SETTLEMENTS.values(), ids=SETTLEMENTS)
@pytest.mark.parametrize("retried", [False, True], ids=["first start", "retried before"])
def test_a_stale_owner_cannot_settle(lab: Lab, settlement: Callable[[list[Delivery]], Settlement], retried: bool) -> None:
    lab.needs(Capability.FENCED)
    stale, other = lab.broker("orders"), lab.broker("orders")
    stale.publish(given.messages("orders", 3))
    held = _fetched(stale, retried=retried)
    lab.steal(stale, held)
    with pytest.raises(OwnershipLost):
        stale.settle(settlement(held))
    taken = list(other.fetch("orders", 10))
    with pytest.raises(OwnershipLost):
        stale.settle(settlement(held))
    assert {delivery.body for delivery in taken} == {b"0", b"1", b"2"}
    assert all(delivery.returned for delivery in taken)
    lab.expect_depth(other, "orders", Depth(leased=3))
    other.settle(Settlement(gone=taken))
    lab.expect_depth(other, "orders", Depth())


@trait(Trait.TAKEOVER)
@pytest.mark.parametrize("settlement", SETTLEMENTS.values(), ids=SETTLEMENTS)
@pytest.mark.parametrize("retried", [False, True], ids=["first start", "retried before"])
def test_a_stale_owner_that_took_new_messages_still_cannot_settle_the_old_ones(
    lab: Lab, settlement: Callable[[list[Delivery]], Settlement], retried: bool
) -> None:
    lab.needs(Capability.FENCED)
    stale, other = lab.broker("orders"), lab.broker("orders")
    stale.publish(given.messages("orders", 3))
    held = _fetched(stale, retried=retried)
    lab.steal(stale, held)
    taken = list(other.fetch("orders", 3))
    stale.publish(given.messages("orders", 2, first=10))
    new = _fetched_again(stale)
    assert {delivery.body for delivery in new} == {b"10", b"11"}
    with pytest.raises(OwnershipLost):
        stale.settle(settlement(held))
    lab.expect_depth(other, "orders", Depth(leased=5))
    stale.settle(Settlement(gone=new))
    other.settle(Settlement(gone=taken))
    lab.expect_depth(other, "orders", Depth())


@trait(Trait.TAKEOVER)
def test_what_an_owner_takes_after_it_lost_everything_is_not_lost_with_it(lab: Lab) -> None:
    lab.needs(Capability.FENCED)
    stale = lab.broker("orders")
    stale.publish(given.messages("orders", 2))
    lab.steal(stale, list(stale.fetch("orders", 1)))
    _fetched_again(stale)
    stale.close()
    assert {delivery.body for delivery in lab.broker("orders").fetch("orders", 10)} == {b"0", b"1"}


@trait(Trait.TAKEOVER)
def test_a_batch_of_which_a_part_was_lost_is_settled_for_the_rest(lab: Lab) -> None:
    lab.needs(Capability.FENCED)
    stale, other = lab.broker("orders"), lab.broker("orders")
    stale.publish(given.messages("orders", 2))
    old = list(stale.fetch("orders", 10))
    lab.steal(stale, old)
    taken = list(other.fetch("orders", 2))
    stale.publish(given.messages("orders", 2, first=10))
    new = _fetched_again(stale)
    with pytest.raises(OwnershipLost):
        stale.settle(Settlement(gone=[*old, *new]))
    lab.expect_depth(other, "orders", Depth(leased=2))
    other.settle(Settlement(gone=taken))
    lab.expect_depth(other, "orders", Depth())


@trait(Trait.TAKEOVER)
def test_an_owner_that_lost_its_messages_is_told_when_it_asks_to_keep_them(lab: Lab) -> None:
    lab.needs(Capability.FENCED)
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 2))
    held = list(broker.fetch("orders", 10))
    broker.extend(held)
    lab.steal(broker, held)
    with pytest.raises(OwnershipLost):
        broker.extend(held)


@trait(Trait.TAKEOVER)
def test_an_owner_keeps_the_one_that_runs_alone_for_as_long_as_it_asks(lab: Lab) -> None:
    broker = lab.broker("orders")
    suspect = _suspect(broker)
    for _ in range(3):
        broker.extend([suspect])
    broker.settle(Settlement(gone=[suspect]))
    lab.expect_depth(broker, "orders", Depth())


@trait(Trait.TAKEOVER)
def test_an_owner_that_lost_the_one_that_runs_alone_is_told_when_it_asks_to_keep_it(lab: Lab) -> None:
    lab.needs(Capability.FENCED)
    broker = lab.broker("orders")
    suspect = _suspect(broker)
    lab.steal(broker, [suspect])
    with pytest.raises(OwnershipLost):
        broker.extend([suspect])


@trait(Trait.TAKEOVER)
def test_a_consumer_that_lost_its_messages_says_so_drops_its_results_and_goes_on(lab: Lab) -> None:
    lab.needs(Capability.FENCED)
    broker = lab.broker("orders")
    starts: list[tuple[int, bool]] = []

    def handle(number: int, delivery: Delivery) -> None:
        starts.append((delivery.attempt, delivery.returned))
        if len(starts) == 1:
            lab.steal(broker, [delivery])

    app = given.consumer(lab.app(), "orders", handle)
    app.publish("orders", 1)
    with Journal() as journal:
        tally = given.consumed(app, "orders", broker)
    assert len(journal.of("ownership-lost")) == 1
    assert starts == [(1, False), (1, True)]
    assert tally.done == 1


def test_a_slow_handler_keeps_its_message(lab: Lab) -> None:
    started, others_done = threading.Event(), threading.Event()
    seen: list[tuple[str, int]] = []

    def slow(number: int) -> None:
        seen.append(("slow", number))
        started.set()
        assert others_done.wait(PATIENCE)

    def quick(number: int) -> None:
        seen.append(("quick", number))
        if len(seen) == 6:
            others_done.set()

    first, second = given.consumer(lab.app(prefetch=1), "orders", slow), given.consumer(lab.app(), "orders", quick)
    first.publish("orders", 0)
    with Running(first, until_empty=True) as one:
        assert started.wait(PATIENCE)
        first.publish_many("orders", range(1, 6))
        with Running(second, until_empty=True) as two:
            one.wait()
            two.wait()
    assert sorted(seen) == [("quick", n) for n in range(1, 6)] + [("slow", 0)]


@trait(Trait.TAKEOVER)
@pytest.mark.parametrize("wrong_by", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_clock_that_jumps_by_an_hour_takes_no_message_from_its_owner(lab: Lab, wrong_by: float) -> None:
    owner, other = lab.broker("orders"), lab.broker("orders")
    owner.publish(given.messages("orders", 2))
    held = owner.fetch("orders", 10)
    lab.shift_clock(wrong_by)
    assert list(other.fetch("orders", 10)) == []
    assert list(lab.broker("orders").fetch("orders", 10)) == []
    owner.settle(Settlement(gone=held))
    lab.expect_depth(other, "orders", Depth())


def test_what_a_connection_leaves_behind_comes_back_and_says_so(lab: Lab) -> None:
    lab.broker("orders").publish(given.messages("orders", 2))
    for vanished in (0, 1, 2, 2):
        broker = lab.broker("orders")
        deliveries = broker.fetch("orders", 10)
        assert [delivery.counters for delivery in deliveries] == [Counters(vanished=vanished)] * 2
        assert all(delivery.returned == (vanished > 0) for delivery in deliveries)
        broker.close()


def test_a_loss_does_not_forget_earlier_attempts(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    (delivery,) = broker.fetch("orders", 10)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=3, first_failed_at=12.5))]))
    broker.fetch("orders", 10)
    broker.close()
    (returned,) = lab.broker("orders").fetch("orders", 10)
    assert returned.counters == Counters(attempts=3, vanished=1, first_failed_at=12.5)


@trait(Trait.TAKEOVER)
def test_what_a_killed_consumer_held_is_taken_over_by_one_that_is_running(lab: Lab) -> None:
    lab.needs(Capability.SHARED | Capability.DURABLE)
    effects, holding = Effects(lab.folder), Gate("holding")

    def hold(number: int) -> None:
        holding.open()
        threading.Event().wait()

    def handle(number: int, delivery: Delivery) -> None:
        effects.add(f"{number} {delivery.counters.vanished} {delivery.attempt}")

    app = given.consumer(lab.app(), "orders", handle)
    app.publish_many("orders", range(20))
    app.close()
    with Child(lambda: given.consumer(lab.app(), "orders", hold).run()) as child:
        holding.wait()
        with Running(app, until_empty=True) as running:  # it waits for what the other one holds
            child.kill()
            running.wait()
    assert effects.counted() == {f"{number} 1 1": 1 for number in range(20)}


@trait(Trait.TAKEOVER)
def test_a_waiting_consumer_is_told_when_a_killed_one_left_messages(lab: Lab) -> None:
    lab.needs(Capability.SHARED | Capability.DURABLE)
    holding, rung = Gate("holding"), threading.Event()

    def hold() -> None:
        lab.broker("orders").fetch("orders", 10)
        holding.open()
        threading.Event().wait()

    lab.broker("orders").publish(given.messages("orders", 2))
    with Child(hold) as child:
        holding.wait()
        broker = lab.broker("orders", ring=rung.set)
        assert list(broker.fetch("orders", 10)) == []
        child.kill()
    assert len(given.fetched_when_rung(broker, "orders", rung, count=2)) == 2


@trait(Trait.TAKEOVER)
def test_a_message_that_was_being_retried_when_its_consumer_was_killed_keeps_its_attempts(lab: Lab) -> None:
    lab.needs(Capability.SHARED | Capability.DURABLE)
    effects, holding = Effects(lab.folder), Gate("holding")

    def fail_then_hold(number: int, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ConnectionError("not now")
        holding.open()
        threading.Event().wait()

    def handle(number: int, delivery: Delivery) -> None:
        effects.add(f"attempt {delivery.attempt}, vanished {delivery.counters.vanished}")

    lab.app().publish("orders", 1)
    with Child(lambda: given.consumer(lab.app(), "orders", fail_then_hold, backoff=Backoff.immediate()).run()) as child:
        holding.wait()
        child.kill()
    drained(given.consumer(lab.app(), "orders", handle))
    seen = effects.lines()
    if not lab.is_atomic and len(seen) > 1:  # killed before the server had read that the original may go
        seen.remove("attempt 1, vanished 1")
    assert seen == ["attempt 2, vanished 1"]


def _fetched(broker: Broker, *, retried: bool) -> list[Delivery]:
    """Everything in the source, held; after one retry if that is asked for."""
    held = list(broker.fetch("orders", 10))
    if retried:
        broker.settle(Settlement(kept=[Kept(delivery, delivery.counters) for delivery in held]))
        held = list(broker.fetch("orders", 10))
    assert len(held) == 3
    return held


def _fetched_again(stale: Broker) -> list[Delivery]:
    """What an owner gets after it lost everything. It may be told of its loss first."""
    try:
        return list(stale.fetch("orders", 10))
    except OwnershipLost:
        return list(stale.fetch("orders", 10))


def _suspect(broker: Broker) -> Delivery:
    """One that must run alone, taken for that."""
    broker.publish(given.messages("orders", 1))
    (delivery,) = broker.fetch("orders", 1)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1, alone=True))]))
    return given.suspect(broker, "orders")


# It can be told what a source waits for, and from whom messages came back.


def test_it_is_said_how_many_messages_came_back_from_a_consumer_that_vanished(lab: Lab) -> None:
    handled: list[int] = []
    app = given.consumer(lab.app(), "orders", handled.append, schema=int)
    app.publish_many("orders", range(3))
    with Journal() as journal:
        vanishing = lab.broker("orders")
        assert len(vanishing.fetch("orders", 10)) == 3
        vanishing.close()
        drained(app)
        said = journal.of("takeover")
    assert sorted(handled) == [0, 1, 2]
    assert sum(int(line.removeprefix("Source 'orders': ").split()[0]) for line in said) == 3, said
    assert all("vanished" in line for line in said)


def test_a_broker_that_can_tells_when_the_next_message_is_due(lab: Lab) -> None:
    broker = lab.broker("orders")
    if not isinstance(broker, ExplainsWaits):
        pytest.skip("this broker does not say what is delayed until when")
    broker.publish([*given.messages("orders", 1, delay=600), *given.messages("orders", 1, delay=7200)])
    assert not broker.fetch("orders", 10)
    due = broker.waits("orders").due
    assert due is not None
    assert 500 < due - time.time() < 700


def test_a_broker_that_can_tells_which_other_consumers_hold_messages(lab: Lab) -> None:
    lab.needs(Capability.EXACT_DEPTH)
    broker, other = lab.broker("orders"), lab.broker("orders")
    assert isinstance(broker, ExplainsWaits)
    assert isinstance(other, ExplainsWaits)
    other.publish(given.messages("orders", 2))
    assert len(other.fetch("orders", 10)) == 2
    me = f"{socket.gethostname()}:{os.getpid()}" if Capability.SHARED in lab.capabilities else "another consumer of this process"
    assert broker.waits("orders").holders == (me,)
    assert other.waits("orders").holders == (), "it is not waiting for itself"
