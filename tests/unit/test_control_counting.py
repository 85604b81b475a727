"""What happened lately is counted, and what is longer ago is not."""

from hypothesis import given
from hypothesis import strategies as st

from unpoison.control.counting import BUCKETS, RecentCount

SECONDS = 30.0
WIDTH = SECONDS / BUCKETS


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 40)), max_size=100))
def test_it_is_exact_but_for_one_bucket(steps):
    counter, now, added = RecentCount(SECONDS), 1_000_000.0, list[tuple[float, int]]()
    for count, pause in steps:
        now += pause
        counter.add(count, now)
        added.append((now, count))
        surely = sum(count for at, count in added if at > now - SECONDS + WIDTH)
        perhaps = sum(count for at, count in added if at > now - SECONDS - WIDTH)
        assert surely <= counter.total(now) <= perhaps


def test_a_clock_that_is_set_back_loses_nothing():
    counter = RecentCount(SECONDS)
    counter.add(3, 1000)
    counter.add(4, 900)
    assert counter.total(1000) == 7


def test_what_is_taken_back_no_longer_counts_and_no_more_than_was_there_can_be():
    counter = RecentCount(SECONDS)
    counter.take(1, 0)
    counter.add(3, 0)
    counter.add(4, 10)
    counter.take(1, 10)
    assert counter.total(10) == 6
    counter.take(4, 10)
    assert (counter.total(10), counter.total(10 + SECONDS)) == (2, 0)
    counter.take(9, 10)
    assert (counter.total(10), counter.total(10 + SECONDS)) == (0, 0)


def test_a_million_cost_no_more_than_one():
    counter = RecentCount(SECONDS)
    for number in range(10_000):
        counter.add(100, number / 1000)
    assert (counter.total(10), len(counter._buckets)) == (1_000_000, 10)
