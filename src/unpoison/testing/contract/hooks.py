"""`on_dlq` and `on_retry` are called once each, after the fact, and can change nothing."""

import threading
from contextlib import ExitStack

from unpoison.app import App
from unpoison.decide.policy import MessageMetadata, PoisonPillHandler
from unpoison.model.backoff import Backoff
from unpoison.model.message import Message
from unpoison.testing import given
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import PATIENCE
from unpoison.testing.running import Journal, Running, drained


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
    app = _failing(lab, handler)
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

    app = _failing(lab, PoisonPillHandler(max_attempts=1, on_dlq=on_dlq))
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

    app = _failing(lab, PoisonPillHandler(max_attempts=1, on_dlq=on_dlq))
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

    app = _failing(lab, PoisonPillHandler(max_attempts=1, on_dlq=on_dlq))
    with Journal(dead=lambda: all_dead.set() if lab.dlq("orders").count() == 3 else None), Running(app) as running:
        for body in (b"1", b"2", b"3"):
            app.publish("orders", body)
        assert all_dead.wait(PATIENCE)
        let_go.set()
        running.run.stop()
        assert running.wait()["orders"].dead == 3


def _failing(lab: Lab, handler: PoisonPillHandler) -> App:
    def fail(payload: bytes) -> None:
        raise ConnectionError("never")

    return given.consumer(lab.app(), "orders", fail, handler=handler)
