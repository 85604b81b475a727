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


def test_first_starts_that_did_not_happen_allow_no_retries():
    budget = RetryBudget(0.2)
    budget.grant(10, 0)
    budget.first_starts(1000)
    budget.not_started(1000)
    assert budget.grant(1000, 1.0) == FLOOR
    budget.not_started(5)
    budget.first_starts(500)
    assert budget.grant(1000, 2.0) == 100, "no more can be taken back than there were"


def test_what_was_not_used_is_saved_for_a_second_at_most():
    budget = RetryBudget(0.2)
    budget.grant(0, 0)
    assert budget.grant(1000, 3600) == FLOOR


def test_those_that_wait_are_as_far_apart_as_the_budget_allows():
    budget = RetryBudget(0.2)
    assert budget.grant(30, 0) == 10
    assert budget.seconds_each == 0.1
    for step in range(100):
        budget.first_starts(1000)
        budget.grant(0, step / 10)
    assert 0.0004 < budget.seconds_each < 0.0006, "two thousand a second"


def test_several_consumers_share_what_is_always_allowed():
    budget, granted = RetryBudget(0.2), 0
    budget.divide_floor(5)
    for step in range(1000):
        granted += budget.grant(1000, step / 10)
    assert FLOOR / 5 * 99 <= granted <= FLOOR / 5 * 101 + FLOOR


def test_a_clock_that_is_set_back_grants_nothing_twice():
    budget = RetryBudget(0.2)
    budget.grant(10, 1000)
    assert budget.grant(10, 500) == 0
    assert budget.grant(10, 500.5) == 5


def test_what_started_before_the_first_retry_does_not_allow_retries_at_once():
    budget = RetryBudget(0.2)
    for _ in range(1000):
        budget.first_starts(1000)
    budget.grant(1, 1000.0)
    assert budget.grant(10**6, 1000.1) <= 20
