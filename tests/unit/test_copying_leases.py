"""What the server may have given to another consumer is not ours any more, by our own clock."""

import threading
from collections.abc import Callable

import pytest

from unpoison.errors import BrokerUnavailable
from unpoison.port.copying.leases import SURE, Keeper, Leases
from unpoison.port.copying.settling import Receipt


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_message_is_ours_for_most_of_the_promised_time_counted_from_the_question(clock):
    leases = Leases(10.0, clock=clock)
    leases.take(["a"], since=98.0)
    clock.now = 98.0 + SURE * 10.0 - 0.1
    assert leases.holds("a")
    assert not leases.is_late
    clock.now += 0.2
    assert not leases.holds("a")
    assert leases.is_late
    assert leases.held([Receipt(None, "a")]) == []


def test_of_many_only_those_that_are_ours_are_held(clock):
    leases = Leases(10.0, clock=clock)
    leases.take(["a", "b"], since=100.0)
    leases.lose(["b", "never held"])
    assert [receipt.handle for receipt in leases.held([Receipt(None, each) for each in "abc"])] == ["a"]
    assert len(leases) == 2


def test_renewed_it_is_ours_for_longer_counted_from_the_question(clock):
    leases = Leases(10.0, clock=clock)
    leases.take(["a"], since=100.0)
    clock.now = 105.0
    leases.renewed(["a"], asked_at=104.0)
    clock.now = 111.0
    assert leases.holds("a")
    clock.now = 112.1
    assert not leases.holds("a")


def test_an_answer_that_comes_too_late_renews_nothing(clock):
    leases = Leases(10.0, clock=clock)
    leases.take(["a"], since=100.0)
    clock.now = 108.5
    leases.renewed(["a"], asked_at=107.0)
    assert not leases.holds("a")
    assert leases.is_late


def test_what_was_settled_meanwhile_is_not_held_again_by_a_renewal(clock):
    leases = Leases(10.0, clock=clock)
    leases.take(["a"], since=100.0)
    leases.forget(["a"])
    leases.renewed(["a"], asked_at=101.0)
    assert len(leases) == 0


def test_the_most_urgent_is_renewed_first_and_what_has_time_is_left(clock):
    leases = Leases(10.0, clock=clock)
    for handle, since in (("late", 99.0), ("soon", 97.0), ("fresh", 100.0), ("lost", 80.0)):
        leases.take([handle], since)
    assert leases.renewable(within=7.5) == ["soon", "late"]
    assert leases.renewable() == ["soon", "late", "fresh"]


def test_where_the_server_lets_nobody_hold_a_message_for_longer_it_is_not_renewed(clock):
    leases = Leases(10.0, longest=30.0, clock=clock)
    leases.take(["a"], since=100.0)
    for now in (105.0, 110.0, 115.0):
        clock.now = now
        assert leases.renewable() == ["a"]
        leases.renewed(["a"], asked_at=now)
    assert leases.left(["a"]) == 15.0
    clock.now = 121.0
    assert leases.renewable() == []


def test_giving_up_returns_what_was_still_ours(clock):
    leases = Leases(10.0, clock=clock)
    leases.take(["old"], since=80.0)
    leases.take(["new"], since=100.0)
    assert leases.give_up() == ["new"]
    assert len(leases) == 0


def failing(times: int, error: Exception) -> tuple[Callable[[], None], threading.Event]:
    """Fails so often; what is set after that."""
    left, worked = [error] * times, threading.Event()

    def call() -> None:
        if left:
            raise left.pop()
        worked.set()

    return call, worked


@pytest.mark.parametrize(("error", "told"), [(BrokerUnavailable("not now"), 0), (ZeroDivisionError("a bug"), 1)])
def test_the_thread_that_renews_outlives_every_error_and_tells_of_a_bug_once(caplog, error, told):
    renew, renewed = failing(3, error)
    look, looked = failing(3, error)
    keeper = Keeper(0.001, renew, look)
    try:
        assert renewed.wait(20)
        assert looked.wait(20)
    finally:
        keeper.close()
    assert ["goes on" in record.getMessage() for record in caplog.records] == [True] * told
