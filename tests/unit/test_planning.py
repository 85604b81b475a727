"""What do retries cost, before they are set loose?"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unpoison.model.backoff import Backoff
from unpoison.planning import (
    INSTANT,
    TOGETHER,
    Scenario,
    Traffic,
    burst,
    busiest,
    described,
    histogram,
    lasting,
    number,
    percent,
    plan,
    same_rate_case,
    schedule,
    warnings,
    worst_case,
)

rates = st.floats(0.001, 1e7)
shares = st.floats(0, 1)
few_retries = st.integers(0, 8)
waits = st.floats(0, 1e5)
seeds = st.integers(0, 1_000)


@st.composite
def backoffs(draw):
    base, most = sorted((draw(waits), draw(waits)))
    jitter = draw(st.booleans())
    kinds = [
        Backoff.exponential(base, most, draw(st.floats(1, 10)), jitter),
        Backoff.fixed(base, jitter),
        Backoff.immediate(),
        Backoff.list(draw(st.lists(waits, min_size=1, max_size=5)), jitter),
    ]
    return draw(st.sampled_from(kinds))


def planned(rate=1000.0, failing=0.05, attempts=5, backoff=None, **options):
    return plan(Scenario(Traffic(rate, failing), attempts, backoff or Backoff.exponential(), **options))


def warned(*arguments, **options):
    return [warning.name for warning in warnings(planned(*arguments, **options))]


@pytest.mark.parametrize(
    ("rate", "failing", "retries", "added", "amplification", "dead"),
    [
        (1000, 0.05, 3, 150, 0.15, 50),
        (1000, 0.50, 5, 2500, 2.50, 500),
        (1000, 1.00, 4, 4000, 4.00, 1000),
        (1000, 0.05, 0, 0, 0, 50),
        (1000, 0, 5, 0, 0, 0),
        (0.5, 0.2, 1, 0.1, 0.2, 0.1),
    ],
)
def test_in_the_worst_case_each_failing_message_fails_all_its_retries(rate, failing, retries, added, amplification, dead):
    load = worst_case(Traffic(rate, failing), retries)
    assert (load.retries, load.amplification, load.dead) == (added, amplification, dead)


@pytest.mark.parametrize(
    ("failing", "retries", "added", "dead"),
    [(0.5, 3, 500 + 250 + 125, 62.5), (0.1, 2, 100 + 10, 1), (1.0, 4, 4000, 1000), (0, 4, 0, 0), (0.5, 0, 0, 500)],
)
def test_at_the_same_rate_each_retry_leaves_fewer_to_fail(failing, retries, added, dead):
    load = same_rate_case(Traffic(1000, failing), retries)
    assert (load.retries, load.amplification, load.dead) == pytest.approx((added, added / 1000, dead))


@given(rates, shares, shares, few_retries, few_retries)
def test_more_failures_or_more_retries_never_add_less(rate, failing, more_failing, retries, more_retries):
    low, high = sorted((failing, more_failing))
    few, many = sorted((retries, more_retries))
    for case in (worst_case, same_rate_case):
        assert case(Traffic(rate, low), few).amplification <= case(Traffic(rate, high), few).amplification
        assert case(Traffic(rate, low), few).amplification <= case(Traffic(rate, low), many).amplification


@given(rates, shares, few_retries)
def test_the_worst_case_is_the_worst(rate, failing, retries):
    worst, same = (case(Traffic(rate, failing), retries) for case in (worst_case, same_rate_case))
    assert same.retries <= worst.retries * (1 + 1e-12)
    assert same.dead <= worst.dead
    assert worst.amplification <= retries * (1 + 1e-12)


def test_without_jitter_starts_are_the_sums_of_the_delays():
    steps = schedule(Backoff.exponential(base=1, max=5, jitter=False), 4, seed=0).steps
    assert [(step.attempt, step.least, step.most) for step in steps] == [(2, 1, 1), (3, 2, 2), (4, 4, 4), (5, 5, 5)]
    for step, start in zip(steps, (1, 3, 7, 12), strict=True):
        assert (step.start.p50, step.start.p90, step.start.p99, step.start.max) == (start, start, start, start)


def test_with_jitter_the_percentiles_are_those_of_a_sum_of_uniform_delays():
    """For one delay of 0–10 s they are 5, 9 and 9.9 s; the sum of two, 0–20 s, has its half at 10 and its 90 % at 20 - √20."""
    first, second = schedule(Backoff.fixed(10, jitter=True), 2, seed=7).steps
    assert (first.start.p50, first.start.p90, first.start.p99) == pytest.approx((5, 9, 9.9), rel=0.02)
    assert (second.start.p50, second.start.p90) == pytest.approx((10, 20 - math.sqrt(20)), rel=0.02)
    assert (first.start.max, second.start.max) == (10, 20)


@settings(max_examples=40)
@given(backoffs(), few_retries, seeds)
def test_percentiles_are_in_order_and_within_what_is_possible(backoff, retries, seed):
    made = schedule(backoff, retries, seed, messages=200)
    assert len(made.steps) == retries
    latest = 0.0
    for attempt, step in enumerate(made.steps, start=1):
        latest += backoff.ceiling(attempt).total_seconds()
        assert 0 <= step.start.p50 <= step.start.p90 <= step.start.p99 <= step.start.max == latest
    assert made == schedule(backoff, retries, seed, messages=200)


@settings(max_examples=40)
@given(backoffs(), few_retries, waits, waits)
def test_a_longer_outage_never_has_fewer_retries_or_deaths(backoff, retries, outage, longer_outage):
    made = schedule(backoff, retries, seed=0, messages=200)
    short, long = sorted((outage, longer_outage))
    assert 0 <= made.pending(short) <= made.pending(long) <= retries
    assert 0 <= made.dead_share(short) <= made.dead_share(long) * (1 + 1e-9) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("delays", "outage", "pending", "dead"),
    [
        ([10, 20], 5, 0, 0),  # nobody has come back yet
        ([10, 20], 10, 0, 0),  # the retry at the very end finds it healed
        ([10, 20], 20, 1, 0),
        ([10, 20], 40, 2, 0.25),  # who arrives in the first 10 of 40 seconds starts for the last time before it ends
        ([], 40, 0, 1),
    ],
)
def test_an_outage_has_as_many_retries_as_came_back_within_it(delays, outage, pending, dead):
    backoff = Backoff.list(delays) if delays else Backoff.immediate()
    made = planned(attempts=len(delays) + 1, backoff=backoff, outage=outage)
    assert made.in_outage.retries == 1000 * pending
    assert made.in_outage.amplification == pending
    assert made.in_outage.dead == 1000 * dead


def test_longer_delays_carry_retries_past_an_outage():
    short, long = planned(), planned(backoff=Backoff.exponential(base=120, max=3600))
    assert short.in_outage.amplification > 3.9
    assert long.in_outage.amplification < 1
    assert long.in_outage.dead < short.in_outage.dead
    assert long.worst == short.worst  # in the long run each retry comes all the same


def test_messages_that_fail_together_come_back_together_without_jitter_and_apart_with_it():
    made = planned(backoff=Backoff.exponential(base=10, max=60))
    assert busiest(made.unjittered, INSTANT) == busiest(made.unjittered, 1.0) == TOGETHER
    assert busiest(made.jittered, INSTANT) < TOGETHER / 20
    assert busiest(made.jittered, 1.0) < TOGETHER / 4


@given(st.lists(st.floats(0, 100), max_size=60).map(sorted), st.floats(0.01, 10))
def test_the_busiest_stretch_is_that_of_all_stretches_that_begin_with_a_start(times, window):
    seen = busiest(times, window)
    # As the code reckons, from the end of a stretch: with rounding `a + window` and `b - window` may differ.
    assert seen == max((sum(last - window < time <= last for time in times) for last in times), default=0)


@settings(max_examples=40)
@given(backoffs(), st.integers(1, 6), st.integers(1, 50), st.booleans())
def test_a_histogram_counts_every_start_once(backoff, retries, buckets, jitter):
    made = burst(backoff, retries, 100, seed=3, jitter=jitter)
    latest = sum(backoff.ceiling(attempt).total_seconds() for attempt in range(1, retries + 1))
    assert sum(histogram(made, buckets, latest)) == 100 * retries


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["outage"]),
        ({"attempts": 1}, []),
        ({"failing": 1.0, "attempts": 1}, []),
        ({"rate": 3.0, "backoff": Backoff.list([3600], jitter=True)}, []),  # 0.05 * 4 is just 20 %, whatever floats say
        ({"failing": 0.051, "backoff": Backoff.fixed(3600)}, ["failing", "no-jitter"]),
        ({"backoff": Backoff.immediate()}, ["outage", "no-delay"]),
        ({"backoff": Backoff.list([90, 90, 90, 90]), "outage": 80}, ["no-jitter"]),
        ({"backoff": Backoff.list([90, 90], jitter=True), "outage": 30, "attempts": 3}, ["outage"]),
        ({"backoff": Backoff.list([3600], jitter=True), "outage": 1, "max_age": 3 * 3600}, ["max-age"]),
        ({"backoff": Backoff.list([3600], jitter=True), "outage": 1, "max_age": 3 * 3600 + 1}, []),
    ],
)
def test_settings_that_make_an_outage_worse_are_warned_about(options, names):
    assert warned(**options) == names


def test_a_warning_names_the_attempts_that_would_do():
    (text,) = [warning.text for warning in warnings(planned(failing=0.10, attempts=6)) if warning.name == "failing"]
    assert "+50 %" in text
    assert "With 3 attempts it would be +20 %." in text
    (text,) = [warning.text for warning in warnings(planned(failing=0.5, attempts=6)) if warning.name == "failing"]
    assert "+250 %" in text
    assert "a single retry each is too much" in text


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (number(2500), "2,500"),
        (number(52.63), "52.6"),
        (number(99.97), "100"),
        (number(0), "0"),
        (number(0.0004), "<0.001"),
        (percent(0.15), "15 %"),
        (percent(2.5), "250 %"),
        (lasting(0.35), "0.35 s"),
        (lasting(90), "1.5 min"),
        (lasting(86_400), "1 d"),
        (lasting(7.4775, digits=2), "7.5 s"),
        (described(Backoff.exponential()), "exponential, base 1 s, max 1 min, full jitter"),
        (described(Backoff.exponential(2, 90, 3, jitter=False)), "exponential, base 2 s, max 1.5 min, factor 3, no jitter"),
        (described(Backoff.fixed(5)), "always 5 s, no jitter"),
        (described(Backoff.immediate()), "no delay"),
        (described(Backoff.list([1, 60])), "delays 1 s, 1 min, no jitter"),
    ],
)
def test_figures_are_said_shortly(said, text):
    assert said == text
