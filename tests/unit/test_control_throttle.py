"""One throttled message waits by itself; several slow the source down, and it comes back to its speed by itself."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison.control.evidence import Evidence
from unpoison.control.throttle import LONGEST, MAX_DEPENDENCIES, Throttle


def running(rate: int, seconds: int = 10) -> Throttle:
    throttle = Throttle()
    for second in range(seconds):
        throttle.started(rate, float(second))
    return throttle


def slowed(rate: int = 100, retry_after: float | None = 5.0) -> Throttle:
    throttle = running(rate)
    assert [throttle.throttled(each, "billing", retry_after, 9.5) for each in "abc"] == [False, False, True]
    return throttle


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 5)), max_size=100))
def test_two_messages_never_slow_a_source_however_often_they_are_throttled(steps):
    throttle, now = running(10), 10.0
    for message, pause in steps:
        now += pause
        assert not throttle.throttled(message, "billing", 60, now)
    assert throttle.room(now) is None


def test_that_a_source_is_slowed_comes_with_its_evidence():
    throttle, told = running(10), [("a", "429"), ("b", "429"), ("a", "quota"), ("c", "slow down")]
    for number, (message, error) in enumerate(told):
        throttle.throttled(message, "billing", 5.0, 10.0 + number, error)
    assert throttle.evidence == Evidence("billing", 11.0, 3, ("quota", "429", "slow down"))


def test_throttles_of_different_dependencies_or_far_apart_do_not_add_up():
    throttle = running(10)
    assert not any(throttle.throttled(each, each, 1, 10) for each in "abcdef")
    assert not any(throttle.throttled(each, "billing", 1, 20 + 6 * number) for number, each in enumerate("abcdef"))


def test_a_thousand_dependencies_are_remembered_at_most():
    throttle = Throttle()
    for number in range(5000):
        throttle.throttled("m", f"tenant-{number}", 1, 0)
    assert len(throttle._asked) == MAX_DEPENDENCIES


def test_nothing_starts_before_the_time_that_was_asked_for():
    throttle = slowed(retry_after=5)
    assert [throttle.room(now) for now in (9.5, 14.4)] == [0, 0]
    assert throttle.next_start_in(9.5) == 5


def test_no_server_can_ask_for_more_than_a_minute():
    throttle = slowed(retry_after=86_400)
    assert throttle.next_start_in(9.5) == LONGEST


def test_then_it_goes_on_at_half_its_rate_and_a_tenth_more_each_second_until_there_is_no_limit():
    throttle, now, counts = slowed(rate=100), 14.5, []
    while True:
        count = 0
        for step in range(1, 101):
            room = throttle.room(now + step / 100)
            if room is None:
                break
            throttle.started(room, now + step / 100)
            count += room
        else:
            counts.append(count)
            now += 1
            continue
        break
    assert 48 <= counts[0] <= 58
    assert all(1.0 <= later / earlier <= 1.2 for earlier, later in pairwise(counts))
    assert 14 <= len(counts) <= 16, "twice the earlier rate after 15 seconds"
    assert throttle.room(now + 10) is None


def test_throttles_of_what_had_started_before_do_not_slow_it_down_further():
    throttle = slowed(rate=100, retry_after=30)
    for number in range(30):
        throttle.throttled(f"late-{number}", "billing", 30, 20.0 + number / 10)
    begin = 9.5 + throttle.next_start_in(9.5)
    throttle.room(begin)
    assert 45 <= throttle.room(begin + 1) <= 55


@pytest.mark.parametrize("retry_after", [None, 0.0, 5.0])
def test_many_that_run_at_once_and_are_throttled_slow_it_once_to_half_its_rate(retry_after):
    throttle = running(100)
    told = [throttle.throttled(f"m{number}", "billing", retry_after, 9.5 + number / 100) for number in range(90)]
    assert sum(told) == 1
    begin = 10.4 + throttle.next_start_in(10.4)
    throttle.room(begin)
    assert 45 <= throttle.room(begin + 1) <= 60


def test_that_it_must_wait_for_much_longer_is_told_again():
    throttle = slowed(retry_after=5)
    assert [throttle.throttled(each, "billing", 30, 9.6) for each in "def"] == [False, False, True]
    assert throttle.next_start_in(9.6) == 30


def test_a_source_that_is_throttled_all_the_time_slows_down_further_each_second():
    throttle, now, starts = slowed(rate=100, retry_after=None), 9.5, []
    for number in range(60):
        now += 0.1
        room = throttle.room(now) or 0
        throttle.started(room, now)
        starts.append(room)
        for each in range(min(room, 3)):
            throttle.throttled(f"{number}-{each}", "billing", None, now)
    assert sum(starts[:10]) > 2 * sum(starts[-10:])


def test_a_source_that_is_throttled_while_it_is_slowed_goes_on_at_half_of_what_it_was_allowed():
    throttle = slowed(rate=100, retry_after=None)
    throttle.room(12.5)
    assert [throttle.throttled(each, "billing", None, 12.5) for each in "xyz"] == [False, False, True]
    throttle.room(12.5)
    assert 30 <= throttle.room(13.5) <= 36, "100 / 2 · 1.1³ / 2"


def test_a_source_that_was_slow_is_not_stopped_for_ever():
    throttle = Throttle()
    for each in "abc":
        throttle.throttled(each, "billing", None, 0)
    started = 0
    for now in range(120):
        room = throttle.room(float(now))
        if room is None:
            return
        throttle.started(room, float(now))
        started += room
    raise AssertionError(f"It is still slowed; {started} were started")


def test_what_was_handed_out_and_taken_back_is_no_part_of_the_earlier_rate():
    throttle = Throttle()
    throttle.started(1_000, 0.0)  # read ahead; a hundred of them have started since
    assert [throttle.throttled(each, "billing", None, 9.5) for each in "abc"] == [False, False, True]
    throttle.not_started(900, 9.5)
    throttle.room(9.5)
    assert 5 <= throttle.room(10.5) <= 6, "half of ten a second"


def test_what_is_taken_back_later_does_not_change_a_rate_that_was_allowed():
    throttle = slowed(rate=100, retry_after=None)
    throttle.room(12.5)
    assert [throttle.throttled(each, "billing", None, 12.5) for each in "xyz"] == [False, False, True]
    throttle.not_started(1_000, 12.5)
    throttle.room(12.5)
    assert 30 <= throttle.room(13.5) <= 36


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 3), st.booleans()), max_size=80))
def test_whatever_comes_the_room_is_never_negative_and_the_wait_is_bounded(steps):
    throttle, now = Throttle(), 0.0
    for number, (count, pause, is_throttled) in enumerate(steps):
        now += pause
        room = throttle.room(now)
        assert room is None or room >= 0
        throttle.started(count if room is None else min(count, room), now)
        if is_throttled:
            throttle.throttled(f"m{number}", "billing", 1e9, now)
        assert 0 <= throttle.next_start_in(now) <= LONGEST + 21
