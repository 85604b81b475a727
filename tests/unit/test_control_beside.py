"""That hardly any other message succeeds is not said because of chance, and is said soon where it is so."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison.control.beside import HARDLY_ANY_FOR, LONGER, MOST_MISTAKES, ROW, Beside

MESSAGES = 10
ENOUGH = ROW * MESSAGES


def row(beside, count, now=HARDLY_ANY_FOR):
    """So many new messages fail, one by one."""
    for _ in range(count):
        beside.ended(0, 1, now)
        beside.failed(is_first=True)


def is_paused_by_chance(share, seed, messages=10_000):
    """Whether a source is paused of whose messages this share does not need what is down, at 20 a second."""
    beside, random = Beside(MESSAGES, 0.0), Random(seed)
    for number in range(messages):
        good = random.random() < share
        beside.ended(good, not good, number / 20)
        if not good:
            beside.failed(is_first=True)
            if beside.hardly_any_succeed(number / 20):
                return True
    return False


@pytest.mark.parametrize(("share", "least", "most"), [(0.1, 0, 2), (0.15, 0, 0), (0.3, 0, 0), (0.01, 100, 100), (0, 100, 100)])
def test_of_a_hundred_sources_so_many_are_paused_in_an_outage_that_concerns_not_all(share, least, most):
    assert least <= sum(is_paused_by_chance(share, seed) for seed in range(100)) <= most


@pytest.mark.parametrize(("count", "is_so"), [(ENOUGH - 1, False), (ENOUGH, True)])
def test_so_many_in_a_row_are_no_chance(count, is_so):
    beside = Beside(MESSAGES, 0.0)
    row(beside, count)
    assert beside.hardly_any_succeed(HARDLY_ANY_FOR) is is_so


def test_a_row_that_is_over_within_a_second_may_hold_up_others_behind_it():
    beside = Beside(MESSAGES, 5.0)
    row(beside, 10 * ENOUGH)
    assert not beside.hardly_any_succeed(5.0 + HARDLY_ANY_FOR - 0.01)
    beside.ended(1, 0, 5.5)
    row(beside, 10 * ENOUGH)
    assert [beside.hardly_any_succeed(5.5 + HARDLY_ANY_FOR + late) for late in (-0.01, 0)] == [False, True]


def test_messages_that_are_run_again_are_no_sample_of_what_comes():
    beside = Beside(MESSAGES, 0.0)
    for _ in range(10_000):
        beside.ended(0, 1, 1.0)
        beside.failed(is_first=False)
    assert not beside.hardly_any_succeed(1_000.0)


@given(st.integers(0, 10_000))
def test_a_row_must_be_longer_by_as_much_each_time_that_twice_as_many_others_have_succeeded(others):
    beside = Beside(MESSAGES, 0.0)
    beside.ended(others, 0, 0.0)
    longer = LONGER * MESSAGES * others.bit_length()
    row(beside, int(ENOUGH + longer) - 1)
    assert not beside.hardly_any_succeed(HARDLY_ANY_FOR)
    row(beside, 1)
    assert beside.hardly_any_succeed(HARDLY_ANY_FOR)


@given(st.integers(1, 500), st.integers(0, 5_000))
def test_the_failures_of_a_batch_are_no_longer_a_row_than_its_successes_leave_between_them(good, failed):
    beside = Beside(MESSAGES, 0.0)
    beside.ended(good, failed, 0.0)
    for _ in range(failed):
        beside.failed(is_first=True)
    assert beside._in_a_row == failed // (good + 1)


@pytest.mark.parametrize(("mistakes", "times"), [(0, 1), (1, 2), (3, 4), (MOST_MISTAKES, 9), (100, 9)])
def test_after_each_pause_that_was_a_mistake_the_next_row_must_be_longer(mistakes, times):
    beside = Beside(MESSAGES, 0.0)
    row(beside, ENOUGH)
    for _ in range(mistakes):
        beside.was_mistaken(0.0)
    row(beside, times * ENOUGH - (0 if mistakes else ENOUGH))
    assert beside.hardly_any_succeed(HARDLY_ANY_FOR)
    beside.was_mistaken(0.0)
    row(beside, times * ENOUGH - 1)
    assert not beside.hardly_any_succeed(HARDLY_ANY_FOR)
