"""Several processes share one source without getting in each other's way."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from unpoison.app import App
from unpoison.errors import Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.port.broker import Capability
from unpoison.testing import given
from unpoison.testing.effects import Effects
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import Child, Gate
from unpoison.testing.running import Journal, drained

CONSUMERS = 4
MESSAGES = 2000
LATE = 200


@trait(Trait.SEVERAL_CONSUMERS)
def test_several_processes_handle_each_message_of_a_source_once(lab: Lab) -> None:
    lab.needs(Capability.SHARED)
    effects = Effects(lab.folder)
    lab.app().publish_many("orders", range(MESSAGES))
    arrived = [Gate(f"consumer {number} has a message") for number in range(CONSUMERS)]
    consumers = [Child(partial(_consume, lab, effects, gate, arrived)) for gate in arrived]
    publishers = [Child(partial(_publish, lab, first)) for first in (MESSAGES, MESSAGES + LATE)]
    assert [child.wait() for child in (*publishers, *consumers)] == [0] * (CONSUMERS + 2)
    drained(_consumer(lab, effects))
    numbers = range(MESSAGES + 2 * LATE)
    done = [line.split() for line in effects.lines()]
    assert Counter(int(number) for number, _ in done) == Counter(number for number in numbers if number % 100)
    assert len({process for _, process in done}) >= CONSUMERS
    assert Counter(letter.body for letter in lab.dlq("orders").letters()) == Counter(
        str(number).encode() for number in numbers if number % 100 == 0
    )


def _consumer(lab: Lab, effects: Effects, arrived: Callable[[], None] = lambda: None) -> App:
    """Every tenth message fails once, every hundredth for good."""

    def handle(number: int, delivery: Delivery) -> None:
        arrived()
        if number % 100 == 0:
            raise Permanent("no")
        if number % 10 == 0 and delivery.attempt == 1:
            raise ConnectionError("not now")
        effects.add(f"{number} {os.getpid()}")

    return given.consumer(lab.app(prefetch=16), "orders", handle, backoff=Backoff.immediate())


def _consume(lab: Lab, effects: Effects, own: Gate, all_of_them: Sequence[Gate]) -> None:
    """Consume until nothing is left. The first message waits until every consumer has one, so that all of them take part."""

    def arrived() -> None:
        if not own.is_open():
            own.open()
            for gate in all_of_them:
                gate.wait()

    with Journal() as journal:
        _consumer(lab, effects, arrived).run(until_empty=True)
    assert journal.errors() == []


def _publish(lab: Lab, first: int) -> None:
    app = lab.app()
    for number in range(first, first + LATE):
        app.publish("orders", number)
