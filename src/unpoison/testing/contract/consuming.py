"""What does a consumer do besides handling messages? It stops without cost, calls hooks, and survives its own faults."""

import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from unpoison.app import App
from unpoison.decide.policy import PoisonPillHandler
from unpoison.errors import Permanent
from unpoison.flow.settling import SettlementBuilder
from unpoison.model.backoff import Backoff
from unpoison.model.message import UNTRIED, Delivery, Message, MessageMetadata
from unpoison.port.broker import Capability, Depth, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import PATIENCE, Child, Effects, Gate
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


# `on_dlq` and `on_retry` are called once each, after the fact, and can change nothing.


def test_hooks_are_called_once_each_after_the_verdict_is_stored(lab: Lab) -> None:
    calls: list[tuple[object, ...]] = []
    broker, dlq = lab.broker("orders"), lab.dlq("orders")

    def on_retry(message: Message, metadata: MessageMetadata, delay: float) -> None:
        depth = broker.depth("orders")
        stored = depth.leased + depth.ready + depth.dead
        calls.append(("retry", message.body, metadata.attempt, delay, stored if lab.counts_exactly else min(1, stored)))

    def on_dlq(message: Message, metadata: MessageMetadata, exc: BaseException) -> None:
        calls.append(("dlq", message.body, metadata.attempt, str(exc), dlq.count()))

    handler = PoisonPillHandler(max_attempts=3, on_dlq=on_dlq, on_retry=on_retry, backoff=Backoff.immediate())
    app = _fails_with(lab, handler)
    app.publish("orders", b"1")
    drained(app)
    assert calls == [
        ("retry", b"1", 1, 0.0, 1),
        ("retry", b"1", 2, 0.0, 1),
        ("dlq", b"1", 3, "never", 1),
    ]


@trait(Trait.FAULTY_BROKER | Trait.ORDERED)
def test_nothing_is_told_while_a_verdict_cannot_be_stored(lab: Lab) -> None:
    calls: list[bytes] = []

    def on_dlq(message: Message, metadata: MessageMetadata, exc: BaseException) -> None:
        calls.append(message.body)

    app = _fails_with(lab, PoisonPillHandler(max_attempts=1, on_dlq=on_dlq))
    app.publish("orders", b"1")
    with Journal() as journal, ExitStack() as fault:
        fault.enter_context(lab.dead_letters_unwritable())
        with Running(app, until_empty=True) as running:
            journal.wait_for("pause")
            assert (calls, journal.of("dead"), running.run.tallies()) == ([], [], {})
            fault.close()
            assert running.wait()["orders"].dead == 1
        assert len(journal.of("dead")) == 1
    assert calls == [b"1"]


@trait(Trait.ORDERED)
def test_a_hook_that_raises_is_reported_and_changes_nothing(lab: Lab) -> None:
    def on_dlq(message: Message, metadata: MessageMetadata, exc: BaseException) -> None:
        raise RuntimeError("the pager is broken")

    app = _fails_with(lab, PoisonPillHandler(max_attempts=1, on_dlq=on_dlq))
    app.publish_many("orders", [b"1", b"2", b"3"])
    with Journal() as journal:
        tally = drained(app)["orders"]
    assert (tally.dead, tally.retried) == (3, 0)
    assert [letter.body for letter in lab.dlq("orders").letters()] == [b"1", b"2", b"3"]
    assert sum("hook" in line for line in journal.errors()) == 3


def test_a_hook_that_hangs_holds_up_no_message(lab: Lab) -> None:
    let_go, all_dead = threading.Event(), threading.Event()

    def on_dlq(message: Message, metadata: MessageMetadata, exc: BaseException) -> None:
        assert let_go.wait(PATIENCE)

    app = _fails_with(lab, PoisonPillHandler(max_attempts=1, on_dlq=on_dlq))
    with Journal(dead=lambda: all_dead.set() if lab.dlq("orders").count() == 3 else None), Running(app) as running:
        for body in (b"1", b"2", b"3"):
            app.publish("orders", body)
        assert all_dead.wait(PATIENCE)
        let_go.set()
        running.run.stop()
        assert running.wait()["orders"].dead == 3


def _fails_with(lab: Lab, handler: PoisonPillHandler) -> App:
    def fail(payload: bytes) -> None:
        raise ConnectionError("never")

    return given.consumer(lab.app(), "orders", fail, handler=handler)


# A fault of our own on the consumer's thread ends the consumer, and never for ever: the message that causes it is given up.


CULPRIT, NEIGHBOURS = b"culprit", [b"1", b"2", b"3", b"4"]
MOST_STARTS = 6


class OwnFault(Exception):
    """Stands for a fault in our code that shows with one message only."""


@contextmanager
def judging_fails(lab: Lab) -> Iterator[None]:
    def of_culprit(builder: SettlementBuilder, delivery: Delivery, *_: object) -> bool:
        return delivery.body == CULPRIT

    with patch.object(SettlementBuilder, "_event", _failing(SettlementBuilder._event, of_culprit)):  # noqa: SLF001 - a fault inside of it
        yield


@contextmanager
def letting_go_fails(lab: Lab) -> Iterator[None]:
    with _settling_fails(lab, lambda settlement: settlement.gone):
        yield


@contextmanager
def letting_go_and_keeping_fail(lab: Lab) -> Iterator[None]:
    with _settling_fails(lab, lambda settlement: [*settlement.gone, *(kept.delivery for kept in settlement.kept)]):
        yield


@contextmanager
def _settling_fails(lab: Lab, part: Callable[[Settlement], Sequence[Delivery]]) -> Iterator[None]:
    def of_culprit(broker: object, settlement: Settlement) -> bool:
        return any(each.body == CULPRIT for each in part(settlement))

    kind: Any = type(lab.connect())
    with patch.object(kind, "settle", _failing(kind.settle, of_culprit)):
        yield


def _failing(function: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    def failing(*arguments: Any) -> Any:
        if when(*arguments):
            raise OwnFault("as asked")
        return function(*arguments)

    return failing


FAULTS = {judging_fails: "lost", letting_go_fails: "lost", letting_go_and_keeping_fail: "invalid"}


@pytest.mark.parametrize("fails", FAULTS)
def test_a_fault_of_our_own_ends_with_the_message_that_causes_it_as_a_dead_letter(lab: Lab, fails: Any) -> None:
    done: list[bytes] = []

    def handle(body: bytes) -> None:
        if body == CULPRIT and fails is judging_fails:
            raise Permanent("judged, and that fails")
        done.append(body)

    lab.app().publish_many("orders", [*NEIGHBOURS[:2], CULPRIT, *NEIGHBOURS[2:]])
    starts = 0
    with fails(lab), Journal() as journal:
        while not _ends_well(given.consumer(lab.app(), "orders", handle, max_attempts=2)):
            starts += 1
            assert starts < MOST_STARTS, "it goes on and on"
    assert starts > 0, "nothing failed"
    assert {*NEIGHBOURS} <= {*done}
    (letter,) = lab.dlq("orders").peek()
    assert (letter.body, letter.classification) == (CULPRIT, FAULTS[fails])
    first, *_ = journal.of("broken")
    assert "'orders'" in first
    assert "OwnFault: as asked" in first
    assert letter.message.id in first


def _ends_well(app: App) -> bool:
    try:
        drained(app)
    except OwnFault:
        return False
    return True
