"""How long to wait before the next attempt?"""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison.errors import ConfigError
from unpoison.model.backoff import DEFAULT_BACKOFF, LONGEST, Backoff, bounded

durations = st.floats(0, 1e12, allow_nan=False)
attempts = st.integers(1, 100_000)
spreads = st.floats(0, 1, exclude_max=True)


@st.composite
def backoffs(draw):
    """Every kind of backoff that can be made."""
    base, most = sorted((draw(durations), draw(durations)))
    jitter = draw(st.booleans())
    return draw(
        st.sampled_from(
            [
                Backoff.exponential(base, most, draw(st.floats(1, 100)), jitter),
                Backoff.fixed(base, jitter),
                Backoff.immediate(),
                Backoff.list(draw(st.lists(durations, min_size=1)), jitter),
            ]
        )
    )


def ceilings(backoff, count=8):
    return [backoff.ceiling(attempt).total_seconds() for attempt in range(1, count + 1)]


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (DEFAULT_BACKOFF, [1, 2, 4, 8, 16, 32, 60, 60]),
        (Backoff.exponential(base=0.5, max=3), [0.5, 1, 2, 3, 3, 3, 3, 3]),
        (Backoff.exponential(base=2, max=500, factor=3), [2, 6, 18, 54, 162, 486, 500, 500]),
        (Backoff.exponential(base=timedelta(minutes=1), max=timedelta(minutes=3)), [60, 120, 180, 180, 180, 180, 180, 180]),
        (Backoff.exponential(base=5, max=60, factor=1), [5] * 8),
        (Backoff.exponential(base=0, max=0), [0] * 8),
        (Backoff.fixed(7), [7] * 8),
        (Backoff.immediate(), [0] * 8),
        (Backoff.list([1, 10, timedelta(minutes=1)]), [1, 10, 60, 60, 60, 60, 60, 60]),
        (Backoff.list([10, 1]), [10, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_delays_grow_as_the_strategy_says(backoff, expected):
    assert ceilings(backoff) == expected


def test_the_default_is_exponential_with_full_jitter_from_one_second_to_sixty():
    assert Backoff.exponential() == DEFAULT_BACKOFF
    assert DEFAULT_BACKOFF.jitter
    assert [DEFAULT_BACKOFF.delay(3, spread).total_seconds() for spread in (0, 0.25, 0.5)] == [0, 1, 2]


@pytest.mark.parametrize(("base", "expected"), [(1, 60), (0, 0)])
def test_attempts_beyond_what_a_float_can_hold_wait_as_long_as_the_last_one_that_fits(base, expected):
    assert Backoff.exponential(base=base, max=60).ceiling(1_000_000).total_seconds() == expected


def test_without_jitter_the_delay_is_exact():
    for backoff in (Backoff.exponential(jitter=False), Backoff.fixed(3), Backoff.list([3, 4])):
        assert backoff.delay(2, 0.1) == backoff.delay(2, 0.9) == backoff.ceiling(2)


@given(backoffs(), attempts, spreads)
def test_a_delay_is_never_negative_and_never_above_its_ceiling(backoff, attempt, spread):
    assert timedelta() <= backoff.delay(attempt, spread) <= backoff.ceiling(attempt) <= LONGEST


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 10), attempts, spreads)
def test_exponential_delays_stay_below_max_and_never_shrink(one, other, factor, attempt, spread):
    base, most = sorted((one, other))
    backoff = Backoff.exponential(base, most, factor)
    assert backoff.ceiling(attempt) <= backoff.ceiling(attempt + 1) <= timedelta(seconds=most)
    assert backoff.delay(attempt, spread) <= timedelta(seconds=most)


@given(backoffs(), attempts, spreads)
def test_a_backoff_is_data_that_survives_the_way_to_another_process(backoff, attempt, spread):
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(backoff), type=Backoff)
    assert copy == backoff
    assert copy.delay(attempt, spread) == backoff.delay(attempt, spread)


@pytest.mark.parametrize(("age", "attempt"), [(0, 1), (0.9, 1), (1, 2), (2.9, 2), (3, 3), (7, 4), (15, 5), (3_600, 64)])
def test_the_attempt_that_was_reached_follows_the_time_spent_failing(age, attempt):
    assert DEFAULT_BACKOFF.reached(timedelta(seconds=age)) == attempt


@given(backoffs(), st.timedeltas())
def test_the_attempt_that_was_reached_is_found_for_every_backoff_and_age(backoff, age):
    assert 1 <= backoff.reached(age) <= 64


@pytest.mark.parametrize(
    ("wait", "seconds"), [(-1, 0), (0, 0), (1.5, 1.5), (1e300, LONGEST.total_seconds()), (float("inf"), LONGEST.total_seconds())]
)
def test_a_wait_that_no_clock_can_hold_becomes_a_century(wait, seconds):
    assert bounded(wait).total_seconds() == seconds


def test_a_base_that_no_clock_can_hold_does_not_raise_at_the_first_failure():
    assert Backoff.exponential(base=1e300, max=1e300).ceiling(1) == LONGEST
    assert Backoff.list([1e300]).ceiling(5) == LONGEST


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Backoff.exponential(base=-1), "base=…) must be a duration of 0 seconds or more, got -1"),
        (lambda: Backoff.exponential(max=float("inf")), "max=…) must be a duration of 0 seconds or more, got inf"),
        (lambda: Backoff.exponential(base="1"), "got '1'"),
        (lambda: Backoff.exponential(base=True), "got True"),
        (lambda: Backoff.exponential(factor=0.5), "factor must be 1 or more, got 0.5"),
        (lambda: Backoff.exponential(factor=float("nan")), "factor must be 1 or more, got nan"),
        (lambda: Backoff.exponential(factor=float("inf")), "factor must be 1 or more, got inf"),
        (lambda: Backoff.exponential(base=10, max=5), "base=10 and max=5"),
        (lambda: Backoff.fixed(-0.1), "got -0.1"),
        (lambda: Backoff.list([]), "at least one delay, got none"),
        (lambda: Backoff.list([1, float("nan")]), "got nan"),
    ],
)
def test_a_backoff_that_cannot_work_is_refused_with_the_value_in_the_text(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)


def test_a_delay_needs_nothing_but_the_attempt():
    assert Backoff.exponential(jitter=False).delay(3) == timedelta(seconds=4)
    drawn = [Backoff.exponential().delay(3) for _ in range(50)]
    assert all(timedelta() <= delay < timedelta(seconds=4) for delay in drawn)
    assert len(set(drawn)) > 1
