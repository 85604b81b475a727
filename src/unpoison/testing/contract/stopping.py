"""A planned stop costs nothing: what runs is finished, the rest goes back as it came."""

import signal
import sys
import threading
from collections import Counter

import pytest

from unpoison.app import App
from unpoison.model.message import UNTRIED, Delivery
from unpoison.port.broker import Capability, Depth, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.effects import Effects
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import PATIENCE, Child, Gate
from unpoison.testing.running import Journal, Running, drained


@trait(Trait.ORDERED)
def test_a_stop_finishes_what_runs_and_hands_the_rest_back_as_it_came(lab: Lab) -> None:
    started, may_end = threading.Event(), threading.Event()
    done: list[int] = []

    def handle(number: int) -> None:
        started.set()
        assert may_end.wait(PATIENCE)
        done.append(number)

    app = given.consumer(lab.app(), "orders", handle, isolation="thread", concurrency=1)
    app.publish_many("orders", range(6))
    with Journal() as journal, Running(app) as running:
        assert started.wait(PATIENCE)
        running.run.stop()
        journal.wait_for("release")
        may_end.set()
        tally = running.wait()["orders"]
    assert done == [0]
    assert (tally.done, tally.retried, tally.dead) == (1, 0, 0)
    rest = lab.broker("orders").fetch("orders", 10)
    assert sorted(delivery.body for delivery in rest) == [b"1", b"2", b"3", b"4", b"5"]
    assert all(delivery.counters == UNTRIED for delivery in rest)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_graceful_restarts_charge_nobody(lab: Lab, number: signal.Signals) -> None:
    lab.needs(Capability.SHARED)
    effects = Effects(lab.folder)
    lab.app().publish_many("orders", range(12))
    for _ in range(5):
        started, released = Gate("started"), Gate("released")
        with Child(lambda: _consume_one_by_one(lab, effects, started, released)) as child:  # noqa: B023 - it ends before the next
            started.wait()
            child.send(number)
            assert child.wait() == 0
    drained(_consumer(lab, effects))
    assert effects.counted() == Counter({f"{n}: attempt 1, returned False": 1 for n in range(12)})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_consumer_ends_when_it_is_told_to(lab: Lab, number: signal.Signals) -> None:
    lab.needs(Capability.SHARED)
    handled = Gate("handled")

    def handle(payload: object) -> None:
        handled.open()

    lab.app().publish("orders", 1)
    with Child(lambda: given.consumer(lab.app(), "orders", handle).run()) as child:
        handled.wait()
        child.send(number)
        assert child.wait() == 0
    lab.expect_depth(lab.broker("orders"), "orders", Depth())


@trait(Trait.TAKEOVER)
def test_a_second_signal_does_not_wait_for_a_handler_that_never_ends(lab: Lab) -> None:
    lab.needs(Capability.SHARED | Capability.DURABLE)
    started, draining, effects = Gate("started"), Gate("draining"), Effects(lab.folder)

    def hang(payload: object) -> None:
        started.open()
        threading.Event().wait()

    def consume() -> None:
        with Journal(release=draining.open):
            given.consumer(lab.app(grace=3600), "orders", hang, isolation="thread", concurrency=1).run()

    lab.app().publish_many("orders", range(6))
    with Child(consume) as child:
        started.wait()
        child.send(signal.SIGTERM)
        draining.wait()
        child.send(signal.SIGTERM)
        assert child.wait() == 0
    drained(_consumer(lab, effects))
    attempts = Counter(line.partition(": ")[2] for line in effects.lines())
    assert attempts == {"attempt 1, returned True": 1, "attempt 1, returned False": 5}, effects.lines()


@trait(Trait.TAKEOVER)
def test_what_was_handed_back_is_there_once_even_if_its_owner_ends_at_that_moment(lab: Lab) -> None:
    lab.needs(Capability.SHARED | Capability.DURABLE)
    effects = Effects(lab.folder)

    def hand_back_and_end() -> None:
        broker = lab.broker("orders")
        _, *unstarted = broker.fetch("orders", 6)
        sys.setswitchinterval(PATIENCE)  # what is left to another thread is left undone
        broker.settle(Settlement(kept=[Kept(delivery, delivery.counters) for delivery in unstarted]))

    lab.app().publish_many("orders", range(6))
    with Child(hand_back_and_end) as child:
        assert child.wait() == 0
    drained(_consumer(lab, effects))
    assert sorted(line.partition(":")[0] for line in effects.lines()) == [str(number) for number in range(6)]


def _consume_one_by_one(lab: Lab, effects: Effects, started: Gate, released: Gate) -> None:
    """Consume until a signal; the first handler ends only once the stop has handed the others back."""
    app = lab.app()

    def handle(number: int, delivery: Delivery) -> None:
        started.open()
        released.wait()
        _note(effects, number, delivery)

    given.consumer(app, "orders", handle, isolation="thread", concurrency=1)
    with Journal(release=released.open):
        app.run()


def _consumer(lab: Lab, effects: Effects) -> App:
    def handle(number: int, delivery: Delivery) -> None:
        _note(effects, number, delivery)

    return given.consumer(lab.app(), "orders", handle)


def _note(effects: Effects, number: int, delivery: Delivery) -> None:
    effects.add(f"{number}: attempt {delivery.attempt}, returned {delivery.returned}")
