"""With what does a promise begin? Messages and dead letters, made the way users make them."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unpoison.app import App
from unpoison.app_internals import consumers_of, runnable
from unpoison.body.payload import new_id
from unpoison.errors import Permanent
from unpoison.flow.consumer import Consumer
from unpoison.flow.sending import check, published
from unpoison.flow.settling import letter
from unpoison.model import verdict
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.failure import Failure
from unpoison.model.message import Delivery, Outgoing
from unpoison.model.verdict import ErrorClassification, Ruling
from unpoison.port.broker import Broker, DeadLetters, one_look
from unpoison.reporting.report import Report, Tally
from unpoison.store.letters.sql_letters import letters_for
from unpoison.store.letters.values import Order
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.lab import Lab
from unpoison.testing.processes import PATIENCE
from unpoison.testing.running import drained
from unpoison.workers.interface import Bell

WITHOUT_CONTROL = {"breaker": None, "budget": None, "admission": None}
PLAIN_ID = "plain"
"""Of messages that a lab makes: nothing is the matter with it."""


def publish(broker: Broker, messages: Sequence[Outgoing]) -> None:
    """Publish these. Raises, as an app does, unless all of them are stored."""
    check(messages, published(lambda: broker, messages, ""))


def messages(source: str, count: int, *, first: int = 0, delay: float = 0.0) -> list[Outgoing]:
    """Numbered messages: the body of each is its number."""
    return [Outgoing(new_id(), source, str(n).encode(), delay=delay) for n in range(first, first + count)]


def consumer(app: App, source: str, handle: Callable[..., Any], **options: Any) -> App:
    """The app, with this handler for the source in the consumer's own thread and without flow control: the plainest way to run
    it. Promises are often about many messages that fail alike."""
    app.consumer(source, **{"isolation": "inline", **WITHOUT_CONTROL, **options})(handle)
    return app


def consumed(app: App, source: str, broker: Broker, clock: Callable[[], float] = time.time) -> Tally:
    """Let the app consume over this connection, and by this clock, until nothing is ready. Returns how messages ended."""
    report, bell = Report(), Bell()
    options = consumers_of(app)[source].options
    started = runnable(app).start_workers(options, broker, bell)
    consumer = Consumer(options, broker, started.workers, report, started.hooks, bell.ring, clock=clock)
    while consumer.turn():
        pass
    return report.tallies()[source]


def fetched_when_rung(broker: Broker, source: str, rung: threading.Event, count: int = 1) -> Sequence[Delivery]:
    """What is fetched after rings, until it is so many. Rings for nothing are allowed, and a ring for each message."""
    found: list[Delivery] = []
    while len(found) < count:
        assert rung.wait(PATIENCE), f"nothing rang; {len(found)} of {count} messages were fetched"
        rung.clear()
        found += broker.fetch(source, 10)
    return found


def suspect(broker: Broker, source: str) -> Delivery:
    """The one that must run alone, taken for that."""
    taken: list[Delivery] = []

    def is_taken() -> bool:
        if broker.has_suspect(source):
            found = broker.take_suspect(source, "here")
            taken.extend([found] if found is not None else [])
        return bool(taken)

    wait_until(is_taken, lambda: "None can be taken to run alone")
    return taken[0]


def letter_of(delivery: Delivery) -> DeadLetter:
    """A dead letter for this delivery, as a consumer would write it."""
    failure = Failure(classification=ErrorClassification.PERMANENT, rule="given", type_name="ValueError", text="given")
    ruling = Ruling(verdict.DeadLetter("given"), failure.classification, failure.rule)
    return letter(delivery, delivery.counters, failure, ruling, "given", consumer="lab", code_version=None)


def dead_letters(lab: Lab, source: str, bodies: Sequence[bytes]) -> None:
    """One dead letter for each body, in this order."""

    def give_up(body: bytes) -> None:
        raise Permanent("given")

    app = consumer(lab.app(), source, give_up)
    app.publish_many(source, bodies)
    drained(app)


def moved_into_a_store(folder: Path, letters: DeadLetters) -> list[WholeLetter]:
    """All letters of a DLQ, in their order, as a store gives them once the DLQ does not have them any more."""
    store = letters_for(f"sqlite:///{folder}/letters.db")
    store.open()
    with one_look(letters):
        found = letters.whole(limit=1_000)
        assert store.put(found).new == len(found)
        ids = [each.letter.id for each in found]
        assert sorted(letters.remove(ids)) == sorted(ids)
    assert letters.count() == 0
    latest = store.page(order=Order.ARRIVAL, limit=len(found)).letters if found else ()
    store.close()
    return [each.whole for each in reversed(latest)]
