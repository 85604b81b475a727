"""A fault of our own on the consumer's thread ends the consumer, and never for ever: the message that causes it is given up."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from unpoison.app import App
from unpoison.errors import Permanent
from unpoison.flow.settlement_builder import Judge
from unpoison.model.message import Delivery
from unpoison.port.broker import Settlement
from unpoison.testing import given
from unpoison.testing.lab import Lab
from unpoison.testing.running import Journal, drained

CULPRIT, NEIGHBOURS = b"culprit", [b"1", b"2", b"3", b"4"]
MOST_STARTS = 6


class OwnFault(Exception):
    """Stands for a fault in our code that shows with one message only."""


@contextmanager
def judging_fails(lab: Lab) -> Iterator[None]:
    def of_culprit(judge: Judge, batch: Any, n: int) -> bool:
        return bool(batch.deliveries[n].body == CULPRIT)

    with patch.object(Judge, "_event", _failing(Judge._event, of_culprit)):  # noqa: SLF001 - a fault inside of it
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
