"""If dead letters cannot be stored the source stands still and says so once: nothing is lost, nothing spins."""

import threading
from contextlib import ExitStack

import pytest

from unpoison.app import App
from unpoison.errors import Permanent, UnpoisonError
from unpoison.flow import consumer as flow
from unpoison.reporting.report import Report
from unpoison.testing import given
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import PATIENCE
from unpoison.testing.running import Journal, Running, drained

TRIES = 5


@trait(Trait.FAULTY_BROKER | Trait.ORDERED)
def test_while_dead_letters_cannot_be_stored_the_source_stands_still_and_then_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    app = _consumer(lab, starts)
    app.publish_many("orders", range(6))
    tried_again = _tried_again(monkeypatch)
    with Journal() as journal, ExitStack() as fault:
        fault.enter_context(lab.dead_letters_unwritable())
        with Running(app, until_empty=True) as running:
            assert tried_again.wait(PATIENCE)
            (told,) = journal.of("pause")
            assert "'orders' stands still" in told
            assert starts == [0, 1, 2], "it went on"
            depth = lab.broker("orders").depth("orders")
            assert (depth.ready + depth.delayed + depth.leased if lab.counts_exactly else 6, depth.empty, depth.dead) == (
                6,
                False,
                0,
            )
            fault.close()
            tally = running.wait()["orders"]
        assert len(journal.of("resume")) == 1
    assert starts == [0, 1, 2, 3, 4, 5]
    assert (tally.done, tally.dead) == (5, 1)
    assert [letter.body for letter in lab.dlq("orders").letters()] == [b"1"]


@trait(Trait.FAULTY_BROKER | Trait.ORDERED)
def test_a_consumer_that_is_stopped_while_dead_letters_cannot_be_stored_loses_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    app = _consumer(lab, starts)
    app.publish_many("orders", range(6))
    tried_again = _tried_again(monkeypatch)
    with lab.dead_letters_unwritable(), Running(app) as running:
        assert tried_again.wait(PATIENCE)
        running.run.stop(grace=0)
        running.wait()
        assert lab.dlq("orders").count() == 0
    assert drained(app)["orders"].dead == 1
    assert set(starts) == set(range(6))
    assert [letter.body for letter in lab.dlq("orders").letters()] == [b"1"]


def _consumer(lab: Lab, starts: list[int]) -> App:
    def handle(number: int) -> None:
        starts.append(number)
        if number == 1:
            raise Permanent("poison")

    return given.consumer(lab.app(prefetch=3), "orders", handle)


def _tried_again(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set once the consumer has tried in vain a few times, which it does without waiting long here."""
    enough, told, tries = threading.Event(), Report.paused, []

    def paused(self: Report, source: str, error: UnpoisonError) -> None:
        told(self, source, error)
        tries.append(source)
        if len(tries) == TRIES:
            enough.set()

    monkeypatch.setattr(Report, "paused", paused)
    monkeypatch.setattr(flow, "RETRY_BROKER", (0.01,))
    return enough
