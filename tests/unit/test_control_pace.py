"""After a pause a source has at most twice its earlier rate, also where that rate was measured long ago or by another process."""

import pytest

from unpoison.control.pace import AT_MOST, FIRST_RATE, MOST_RATE, Pace

USUAL = 100


def starts(pace, seconds, now=0.0, rate=USUAL):
    """As many a second, for so many seconds. Returns when that was over."""
    for tenth in range(round(10 * seconds)):
        pace.started(rate // 10, now + tenth / 10)
    return now + seconds


def paused(pace, now, seconds=60.0):
    pace.measure(now)
    pace.begin(now + seconds)
    return now + seconds


def fastest(pace, now, seconds=30.0, capacity=10_000):
    """The most starts in one second, of a source with an endless backlog."""
    most = 0
    for second in range(round(seconds)):
        started = 0
        for tenth in range(10):
            at = now + second + tenth / 10
            room = pace.room(at)
            count = capacity // 10 if room is None else min(room, capacity // 10)
            pace.started(count, at)
            pace.fetched(count, count, at)
            started += count
        most = max(most, started)
    return most


def until_free(pace, now):
    """The backlog is soon gone."""
    while pace.room(now) is not None:
        pace.fetched(10, 0, now)
        now += 0.1
    return now


@pytest.mark.parametrize("seconds", [11, 20, 60, 600])
def test_a_source_that_has_run_for_ten_seconds_has_a_rate(seconds):
    pace = Pace()
    now = paused(pace, starts(pace, seconds))
    assert 0.9 * USUAL <= fastest(pace, now) <= 1.1 * AT_MOST * USUAL


@pytest.mark.parametrize("seconds", [0.5, 5, 20, 40])
def test_a_second_pause_soon_after_the_first_one_forgets_no_rate(seconds):
    pace = Pace()
    now = until_free(pace, paused(pace, starts(pace, 60)))
    now = paused(pace, starts(pace, seconds, now))
    assert 0.9 * USUAL <= fastest(pace, now) <= 1.1 * AT_MOST * USUAL


def test_what_starts_faster_after_a_pause_makes_the_next_limit_no_higher():
    pace, rates = Pace(), []
    now = paused(pace, starts(pace, 60))
    for _ in range(10):
        rates.append(fastest(pace, now, 40))
        now = starts(pace, 15, until_free(pace, now + 40))
        now = paused(pace, now)
    assert max(rates) <= 1.1 * AT_MOST * USUAL


def test_probes_show_no_rate():
    pace = Pace()
    now = starts(pace, 60)
    pace.measure(now)
    for probe in range(40):
        pace.started(1, now + 15 * probe)
    assert pace.rate(now + 600) == pytest.approx(USUAL, rel=0.05)
    pace.begin(now + 600)
    assert fastest(pace, now + 600) >= 0.9 * USUAL


def test_a_source_whose_rate_nobody_knows_doubles_until_it_is_at_full_speed():
    pace = Pace()
    now = paused(pace, starts(pace, 5))
    assert pace.rate(now) is None
    assert fastest(pace, now, capacity=3_000) == 3_000


def test_a_process_that_begins_in_a_pause_goes_on_from_the_rate_that_it_is_told():
    pace = Pace()
    pace.learn(USUAL)
    now = paused(pace, 0.0)
    assert pace.room(now + 0.1) <= 1 + FIRST_RATE * USUAL
    assert 0.9 * USUAL <= fastest(pace, now) <= 1.1 * AT_MOST * USUAL


def test_what_a_process_has_measured_counts_for_more_than_what_it_is_told():
    pace = Pace()
    now = paused(pace, starts(pace, 60))
    pace.learn(7.0)
    assert pace.rate(now) == pytest.approx(USUAL, rel=0.05)


@pytest.mark.parametrize("told", [0.0, -1.0, float("nan"), float("inf"), MOST_RATE])
def test_a_rate_that_is_none_is_not_believed(told):
    pace = Pace()
    pace.learn(told)
    assert pace.rate(0.0) is None
