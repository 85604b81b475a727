"""What happens in the same way on several brokers: a server that goes away and comes back, a right that is taken away, a dead
letter that another program moves back."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from unpoison import App
from unpoison.brokers import foreign_dlq
from unpoison.flow import ending
from unpoison.model.backoff import Backoff
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Delivery
from unpoison.port.broker import close
from unpoison.store.letters.choice import letters_at
from unpoison.store.letters.collected import CollectedLetters
from unpoison.store.letters.collector import Collected, Collector
from unpoison.store.letters.sql_letters import letters_for
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.lab import Lab
from unpoison.testing.processes import PATIENCE
from unpoison.testing.running import Journal, Running, drained


def consumed_through_a_restart(
    app: App,
    restart: Callable[[], object],
    *,
    delay: float,
    within: float = PATIENCE,
    published: Callable[[], object] = lambda: None,
) -> list[int]:
    """Consume 61 messages, some of them retried and the last one delayed, while their server is restarted. Returns what was done;
    each message at least once. `published` is called before the first one starts."""
    done: list[int] = []
    restarted = threading.Event()
    failures: list[Exception] = []  # of the restart: a consumer would take them for failures of the message

    def handle(number: int, delivery: Delivery) -> None:
        if number == 20 and not restarted.is_set():
            restarted.set()
            try:
                restart()
            except Exception as error:
                failures.append(error)
                raise
        if number % 10 == 0 and delivery.attempt == 1:
            raise ConnectionError("not now")
        done.append(number)

    given.consumer(app, "orders", handle, backoff=Backoff.fixed(0.5))
    app.publish_many("orders", range(60))
    app.publish("orders", 60, delay=delay)
    published()
    with Running(app) as running:
        wait_until(lambda: failures or set(done) == set(range(61)), lambda: f"Missing {set(range(61)) - set(done)}", within)
        running.run.stop()
        running.wait()
    if failures:
        raise failures[0]
    return done


def pause_of_a_lost_right(
    monkeypatch: pytest.MonkeyPatch,
    app: App,
    publish: Callable[[], object],
    take: Callable[[], object],
    give: Callable[[], object],
) -> str:
    """Take a right away while a message runs that fails, and give it back. The source is paused meanwhile, and the message is
    charged for nothing but its failure. Returns what the pause said."""
    attempts: list[tuple[int, bool]] = []
    started, may_end = threading.Event(), threading.Event()

    def handle(number: int, delivery: Delivery) -> None:
        attempts.append((delivery.attempt, delivery.returned))
        if len(attempts) == 1:
            started.set()
            assert may_end.wait(60)
            raise ConnectionError("not now")

    monkeypatch.setattr(ending, "RETRY_BROKER", (0.1,))
    given.consumer(app, "orders", handle, backoff=Backoff.immediate(), isolation="thread", concurrency=1)
    publish()
    with Journal() as journal, Running(app):
        assert started.wait(30)
        take()
        may_end.set()
        journal.wait_for("pause")
        give()
        wait_until(lambda: len(attempts) == 2, lambda: f"It was started {attempts}")
        journal.wait_for("resume")
    app.close()
    assert attempts == [(1, False), (2, False)]
    return str(journal.of("pause")[0])


def letter_moved_back(app: App, move: Callable[[], object]) -> DeadLetter:
    """Give a message up, have another program move its letter back to the source, and give it up again. It starts anew, and its
    history is kept. Returns the last letter."""
    attempts: list[int] = []

    def handle(number: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise ConnectionError(f"failed in life {1 + (len(attempts) > 2)}")

    given.consumer(app, "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    app.publish("orders", 1)
    drained(app)
    assert attempts == [1, 2]
    move()
    with Journal() as journal:
        drained(app)
    assert "moved 1 dead letter back from the DLQ" in journal.of("moved-back")[0]
    assert attempts == [1, 2, 1, 2]
    *_, letter = app.dlq("orders").letters()
    assert (letter.replays, letter.attempts) == (1, 2)
    assert [past.error.rpartition(" ")[2] for past in letter.history] == ["1", "1", "2", "2"]
    return letter


@contextmanager
def letters_in_store(lab: Lab, dlq: str) -> Iterator[CollectedLetters]:
    """The letters of a DLQ of others, collected into a store in the lab's folder."""
    letters = letters_at(lab.url, f"sqlite:///{lab.folder}/letters.db", dlq)
    assert isinstance(letters, CollectedLetters)
    try:
        yield letters
    finally:
        letters.close()


def collected(lab: Lab, dlq: str, *accepted: str) -> Collected:
    """Move the letters of a DLQ of others into the same store."""
    store = letters_for(f"sqlite:///{lab.folder}/letters.db")
    store.open()
    native = foreign_dlq(lab.url, dlq, accepted)
    try:
        return Collector(native, store, dlq, dlq).collect()
    finally:
        close(native)
        store.close()
