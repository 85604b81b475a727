"""Several processes share one source, and several operators one DLQ, without getting in each other's way."""

import os
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from unpoison.app import App
from unpoison.errors import LetterNotFound, Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.port.broker import Capability
from unpoison.testing import given
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import Child, Effects, Gate
from unpoison.testing.running import Journal, drained

CONSUMERS = 4
MESSAGES = 2000
LATE = 200
OPENING = 200
"""Messages with which consumers wait until each of them has one: so all take part. What one of them holds while another joins
may be handled twice, so these are not counted."""


@trait(Trait.SEVERAL_CONSUMERS)
def test_several_processes_handle_each_message_of_a_source_once(lab: Lab) -> None:
    lab.needs(Capability.SHARED)
    effects = Effects(lab.folder)
    lab.app().publish_many("orders", range(-OPENING, 0))
    arrived, begin = [Gate(f"consumer {number} has a message") for number in range(CONSUMERS)], Gate("begin")
    consumers = [Child(partial(_consume, lab, effects, gate, begin)) for gate in arrived]
    for gate in arrived:
        gate.wait()
    lab.app().publish_many("orders", range(MESSAGES))
    begin.open()
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
        if number < 0:
            arrived()
            return
        if number % 100 == 0:
            raise Permanent("no")
        if number % 10 == 0 and delivery.attempt == 1:
            raise ConnectionError("not now")
        effects.add(f"{number} {os.getpid()}")

    return given.consumer(lab.app(prefetch=16), "orders", handle, backoff=Backoff.immediate())


def _consume(lab: Lab, effects: Effects, own: Gate, begin: Gate) -> None:
    """Consume until nothing is left."""

    def arrived() -> None:
        if not own.is_open():
            own.open()
            begin.wait()

    with Journal() as journal:
        _consumer(lab, effects, arrived).run(until_empty=True)
    assert journal.errors() == []


def _publish(lab: Lab, first: int) -> None:
    app = lab.app()
    for number in range(first, first + LATE):
        app.publish("orders", number)


# Two people work on the same dead letters at once: each letter is sent at most once, and none vanishes.


LETTERS, PAGE = 330, 100
"""More than three pages, so that the operators meet inside one and between two of them."""


def test_a_letter_that_two_threads_replay_and_purge_is_either_sent_or_purged(lab: Lab) -> None:
    operators = _letters_and_operators(lab)
    barrier = threading.Barrier(len(operators))

    def start(operator: Callable[[], None]) -> None:
        barrier.wait()
        operator()

    threads = [threading.Thread(target=start, args=(operator,)) for operator in operators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _check_that_each_was_sent_or_purged(lab)


def test_a_letter_that_two_processes_replay_and_purge_is_either_sent_or_purged(lab: Lab) -> None:
    lab.needs(Capability.SHARED)
    operators = _letters_and_operators(lab)
    start = Gate("start")

    def work(operator: Callable[[], None]) -> None:
        start.wait()
        operator()

    children = [Child(partial(work, operator)) for operator in operators]
    start.open()
    assert [child.wait() for child in children] == [0] * len(children)
    _check_that_each_was_sent_or_purged(lab)


def test_two_operators_who_replay_the_oldest_take_different_letters(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [str(n).encode() for n in range(40)])
    taken: list[str] = []

    def take() -> None:
        dlq = lab.dlq("orders")
        while result := dlq.replay_one():
            taken.extend(result.replayed)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == 40
    assert len(lab.broker("orders").fetch("orders", 100)) == 40


def _letters_and_operators(lab: Lab) -> list[Callable[[], None]]:
    """Letters, and what four operators do with them. What each was told goes on record."""
    given.dead_letters(lab, "orders", [str(n).encode() for n in range(LETTERS)])
    told = Effects(lab.folder, "told")

    def replay() -> None:
        for _ in lab.dlq("orders", PAGE).replay_all().replayed:
            told.add("sent")

    def purge() -> None:
        for _ in range(lab.dlq("orders", PAGE).purge().purged):
            told.add("purged")

    def discard() -> None:
        dlq = lab.dlq("orders")
        for letter in reversed(list(dlq.letters())):
            try:
                dlq.discard(letter.id)
            except LetterNotFound:
                return
            told.add("discarded")

    return [replay, replay, purge, discard]


def _check_that_each_was_sent_or_purged(lab: Lab) -> None:
    """What the operators were told adds up to all letters, and just what was sent arrives."""
    told = Effects(lab.folder, "told").counted()
    assert sum(told.values()) == LETTERS
    received: list[int] = []

    def handle(number: int) -> None:
        received.append(number)

    drained(given.consumer(lab.app(), "orders", handle))
    assert len(received) == len(set(received)) == told["sent"]
    assert lab.dlq("orders").count() == 0
