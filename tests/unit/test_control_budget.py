"""Retries take a bounded share of the traffic; a few are always allowed."""

from hypothesis import given
from hypothesis import strategies as st

from unpoison.control.budget import FLOOR, RetryBudget


def test_with_little_traffic_ten_a_second_may_start():
    budget, granted = RetryBudget(0.2), 0
    for step in range(1000):
        granted += budget.grant(1000, step / 10)
    assert FLOOR * 99 <= granted <= FLOOR * 101


def test_with_much_traffic_a_fifth_of_the_first_starts():
    budget, granted = RetryBudget(0.2), 0
    for step in range(1000):
        budget.first_starts(100)  # a thousand a second
        granted += budget.grant(1000, step / 10)
    assert 0.19 <= granted / 100_000 <= 0.21


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.floats(0, 3)), min_size=1, max_size=100))
def test_whatever_comes_retries_stay_below_share_and_floor(steps):
    budget, now, firsts, granted = RetryBudget(0.2), 0.0, 0, 0
    budget.grant(0, now)
    earned = FLOOR
    for first, wanted, pause in steps:
        now += pause
        budget.first_starts(first)
        firsts += first
        found = budget.grant(wanted, now)
        assert 0 <= found <= wanted
        granted += found
    earned += FLOOR * now + 0.2 * firsts
    assert granted <= earned


def test_what_was_not_used_is_saved_for_a_second_at_most():
    budget = RetryBudget(0.2)
    budget.grant(0, 0)
    assert budget.grant(1000, 3600) == FLOOR


def test_the_rest_is_told_when_its_turn_comes():
    budget = RetryBudget(0.2)
    assert budget.grant(30, 0) == 10
    waits = [budget.wait(number, 0) for number in range(20)]
    assert waits == sorted(waits)
    assert (round(waits[0], 3), round(waits[19], 3)) == (0.1, 2.0)


def test_a_clock_that_is_set_back_grants_nothing_twice():
    budget = RetryBudget(0.2)
    budget.grant(10, 1000)
    assert budget.grant(10, 500) == 0
    assert budget.grant(10, 500.5) == 5
