"""Two people work on the same dead letters at once: each letter is sent at most once, and none vanishes."""

import threading
from collections.abc import Callable
from functools import partial

from unpoison.errors import LetterNotFound
from unpoison.port.broker import Capability
from unpoison.testing import given
from unpoison.testing.effects import Effects
from unpoison.testing.lab import Lab
from unpoison.testing.processes import Child, Gate
from unpoison.testing.running import drained

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
