"""Many messages that fail on one dependency are an outage; one that fails often is poison. Nothing else opens a circuit."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison.control.breaker import Charge, Circuit, CircuitState
from unpoison.control.evidence import MAX_KNOWN, Ended
from unpoison.control.options import Breaker
from unpoison.errors import ConfigError

OPTIONS = Breaker()


def circuit(*, is_named: bool = True) -> Circuit:
    return Circuit("billing:443", OPTIONS, is_named=is_named)


def opened(*, now: float = 0.0) -> Circuit:
    found = circuit()
    for number in range(OPTIONS.messages):
        found.failed(f"m{number}", "refused", now)
    assert found.state is CircuitState.OPEN
    return found


@given(st.lists(st.floats(0, 60), min_size=1, max_size=200))
def test_one_message_that_fails_often_opens_nothing_and_is_charged_each_time(pauses):
    found, now = circuit(), 0.0
    for pause in pauses:
        now += pause
        assert found.failed("poison", "refused", now).charge is Charge.CHARGED
    assert found.state is CircuitState.CLOSED


@pytest.mark.parametrize("number", [OPTIONS.messages - 1, OPTIONS.messages])
def test_so_many_different_messages_within_the_window_are_an_outage(number):
    found = circuit()
    for each in range(number):
        found.failed(f"m{each}", "refused", each)
    assert (found.state is CircuitState.OPEN) == (number == OPTIONS.messages)


@pytest.mark.parametrize("messages", [2, MAX_KNOWN, 3 * MAX_KNOWN])
def test_an_outage_is_noticed_however_many_messages_make_one(messages):
    found, states = Circuit("billing:443", Breaker(messages=messages), is_named=True), []
    for each in range(messages):
        states.append(found.state)
        found.failed(f"m{each}", "refused", each / 1000)
    assert (set(states), found.state) == ({CircuitState.CLOSED}, CircuitState.OPEN)


def test_failures_that_are_too_far_apart_are_no_outage():
    found = circuit()
    for each in range(1000):
        assert found.failed(f"m{each}", "refused", each * 3.4).charge is not Charge.OUTAGE


def test_with_a_named_dependency_only_the_first_message_is_charged():
    found = circuit()
    charges = [found.failed(f"m{each}", "refused", each / 10).charge for each in range(12)]
    assert charges == [Charge.CHARGED, *[Charge.UNCHARGED] * 8, *[Charge.OUTAGE] * 3]


def test_after_the_window_without_an_outage_failures_are_charged_again():
    found = circuit()
    charges = [[found.failed(each, "refused", now).charge for each in ("a", "b")] for now in range(0, 40, 2)]
    assert charges[-1] == [Charge.CHARGED, Charge.CHARGED]


@given(st.booleans(), st.lists(st.tuples(st.integers(0, 12), st.floats(0, 2)), max_size=200))
def test_once_others_fail_too_no_message_is_left_with_more_than_two_charges(is_named, steps):
    """Those from before that was known are taken back."""
    found, now, charged = circuit(is_named=is_named), 0.0, dict[str, int]()
    for message, pause in steps:
        now += pause
        if now >= OPTIONS.within:
            break
        charge, refund = found.failed(f"m{message}", "refused", now, Ended(10, 10))
        charged[f"m{message}"] = charged.get(f"m{message}", 0) + (charge is Charge.CHARGED) - refund
        if charge is not Charge.CHARGED:
            assert charged[f"m{message}"] <= 2


def test_a_few_messages_that_fail_alike_are_charged_each_time_where_the_dependency_is_a_guess():
    found = circuit(is_named=False)
    for now in range(20):
        assert {found.failed(f"m{each}", "KeyError in ship", now, Ended(8, 8)).charge for each in range(4)} == {Charge.CHARGED}


@pytest.mark.parametrize(("successes", "state"), [(1, CircuitState.OPEN), (2, CircuitState.CLOSED)])
def test_where_every_message_needs_it_a_success_of_any_speaks_against_an_outage(successes, state):
    found = Circuit("billing", OPTIONS, is_named=True, needed_by_all=True)
    for each in range(9):
        found.failed(f"m{each}", "refused", each, Ended(successes_before=100))
    found.failed("m9", "refused", 9, Ended(successes_before=100 + successes))
    assert found.state is state


def test_for_each_of_the_next_probes_one_comes_back_and_the_others_later_and_later():
    found = opened()
    assert [found.wait(0, 0.5, 0) for _ in range(7)] == [1, 3, 7, 15, 30, 45, 60]
    assert [found.wait(times, 0.0, 0) for times in range(7)] == [40, 80, 160, 320, 400, 400, 400]
    assert [found.wait(times, 1.0, 0) for times in range(7)] == [60, 120, 240, 480, 600, 600, 600]
    assert found.wait(3, 0.5, 300) == 1, "all have come back"
    turns = [found.wait(9, 0.5, 300) for _ in range(25)]
    assert turns == [3, 7, *range(15, 301, 15), *[500] * 3], "as far ahead as the outage has lasted"


def test_a_ramp_does_not_end_by_itself_while_messages_fail():
    found = in_ramp()
    for now in (40, 60):
        found.started([f"bad-{now}"], now)
        found.failed(f"bad-{now}", "refused", now)
        found.expire(now + 20)
    assert found.state is CircuitState.RAMP


def test_a_ramp_in_which_few_messages_come_ends_by_itself():
    found = opened()
    found.started(["probe"], 1)
    found.recovered("probe", 1)
    states = []
    for now in (31, 31.1):
        found.expire(now)
        states.append(found.state)
    assert states == [CircuitState.RAMP, CircuitState.CLOSED]


def test_an_open_circuit_of_which_nothing_is_heard_any_more_closes():
    found = opened()
    states = []
    for now in (1200, 1201):
        found.expire(now)
        states.append(found.state)
    assert states == [CircuitState.OPEN, CircuitState.CLOSED]


def test_where_the_dependency_is_a_guess_half_of_all_must_fail_on_it():
    for ended, state in ((21, CircuitState.CLOSED), (20, CircuitState.OPEN)):
        found = circuit(is_named=False)
        for each in range(10):
            found.failed(f"m{each}", "KeyError in ship", each / 10, Ended(ended, ended))
        assert found.state is state


def test_no_outage_if_those_that_failed_succeed_when_run_again():
    found = circuit()
    found.failed("m0", "refused", 0)
    found.recovered("m0", 0.5)
    charges = [found.failed(f"m{each}", "refused", 1).charge for each in range(1, 11)]
    assert Charge.OUTAGE not in charges[:9], "one of ten is a tenth"
    assert charges[9] is Charge.OUTAGE, "one of eleven is less"


def test_the_evidence_says_what_since_when_and_with_which_errors():
    found = circuit()
    for each in range(10):
        found.failed(f"m{each}", f"refused by {each % 5}", 100 + each)
    evidence = found.evidence
    assert (evidence.dependency, evidence.since, evidence.messages) == ("billing:443", 100, 10)
    assert evidence.samples == ("refused by 0", "refused by 1", "refused by 2")


def test_probes_come_after_1_2_4_8_and_then_every_15_seconds():
    found, now, probes = opened(), 0.0, []
    while now < 75:
        if found.room(now):
            probes.append(now)
            found.started([f"p{now}"], now)
            found.failed(f"p{now}", "refused", now)
        now += 0.5
    assert probes == [1, 3, 7, 15, 30, 45, 60]


def test_a_probe_that_outlasts_its_interval_does_not_block_the_next_but_three_are_the_most():
    found, started = opened(), []
    for now in range(300):
        for _ in range(found.room(now) or 0):
            started.append(now)
            found.started([f"p{now}"], now)
    assert started == [1, 3, 7]
    found.failed("p1", "hung up", 300)
    assert found.room(300) == 1


def test_a_probe_that_fails_for_another_reason_decides_nothing_and_another_one_comes_soon():
    found = opened()
    for now in (1, 3, 7):
        found.started([f"p{now}"], now)
        found.failed(f"p{now}", "refused", now)
    found.started(["poison"], 15)
    found.ended_otherwise("poison", 15.5)
    assert (found.state, found.room(16), found.room(16.5)) == (CircuitState.OPEN, 0, 1)


def test_after_a_probe_that_succeeds_1_2_4_and_more_may_run_until_it_is_closed():
    found, allowed = opened(), []
    found.started(["probe"], 1)
    found.recovered("probe", 1)
    while found.state is CircuitState.RAMP:
        room = found.room(2)
        allowed.append(room)
        names = [f"{len(allowed)}-{each}" for each in range(room)]
        found.started(names, 2)
        assert found.room(2) == 0
        for name in names:
            found.recovered(name, 2)
    assert allowed == [1, 2, 4, 8, 16, 32, 64]
    assert (found.state, found.room(3), found.evidence) == (CircuitState.CLOSED, None, None)


def in_ramp(*, succeeded=0):
    """A circuit whose probe, and so many after it, have succeeded."""
    found = opened()
    for now in (1, 3, 7):
        found.started([f"p{now}"], now)
        found.failed(f"p{now}", "refused", now)
    for number in range(1 + succeeded):
        found.started([f"good-{number}"], 15)
        found.recovered(f"good-{number}", 15)
    assert found.state is CircuitState.RAMP
    return found


def test_if_three_fail_in_a_row_after_the_probe_it_opens_again_and_probes_go_on_at_the_interval_they_had():
    found, states = in_ramp(), []
    for number in range(3):
        found.started([f"bad-{number}"], 16)
        assert found.failed(f"bad-{number}", "refused", 16).charge is Charge.OUTAGE
        states.append(found.state)
    assert states == [CircuitState.RAMP, CircuitState.RAMP, CircuitState.OPEN]
    assert found.next_probe_in(16) == 15


def test_a_failure_of_what_was_not_let_through_decides_nothing_in_a_ramp():
    found = in_ramp()
    assert {found.failed(f"new-{number}", "refused", 16).charge for number in range(100)} == {Charge.OUTAGE}
    assert found.state is CircuitState.RAMP


@pytest.mark.parametrize(("in_a_row", "state"), [(9, CircuitState.RAMP), (10, CircuitState.OPEN)])
def test_later_in_a_ramp_so_many_must_fail_in_a_row(in_a_row, state):
    found = in_ramp(succeeded=1)
    for number in range(in_a_row):
        found.started([f"bad-{number}"], 16)
        found.failed(f"bad-{number}", "refused", 16)
    assert found.state is state


def _flaky_for_two_minutes(random, share):
    """Each second a hundred messages call it, and what failed is run again. In how many of the last sixty is it not closed?"""
    found, again, not_closed = circuit(), list[str](), 0
    for now in range(120):
        room, new = found.room(now), [f"{now}-{each}" for each in range(100)]
        let_through, again = (again, []) if room is None else (again[:room], again[room:])
        found.started(let_through if room is not None else (), now)
        for each in (*new, *let_through):
            is_first = each in new
            if random.random() < share:
                found.failed(each, "refused", now, Ended(3000, 300), is_first=is_first)
                again.append(each)
            elif not is_first:
                found.recovered(each, now)
        found.expire(now)
        not_closed += now >= 60 and found.state is not CircuitState.CLOSED
    return not_closed


@pytest.mark.parametrize(("share", "least", "most"), [(0.3, 0, 0.01), (0.5, 0, 0.05), (1.0, 1.0, 1.0)])
def test_a_dependency_on_which_every_other_call_fails_is_flaky_and_not_down(share, least, most):
    not_closed = sum(_flaky_for_two_minutes(Random(seed), share) for seed in range(20)) / (20 * 60)
    assert least <= not_closed <= most


def test_a_few_poison_messages_keep_no_circuit_open():
    """Nine is one fewer than make an outage."""
    found, now = opened(), 0.0
    while found.state is not CircuitState.CLOSED:
        now += 15
        assert now <= 1_400
        found.started([f"m{now / 15 % 9}"], now)
        found.failed(f"m{now / 15 % 9}", "refused", now)
        found.expire(now)
    assert found.failed("m1", "refused", now).charge is Charge.CHARGED


def test_ten_messages_that_still_fail_in_turn_keep_it_open():
    found = opened()
    for now in range(0, 10_000, 15):
        found.started([f"m{now / 15 % 10}"], now)
        found.failed(f"m{now / 15 % 10}", "refused", now)
        found.expire(now)
    assert found.state is CircuitState.OPEN


EVENTS = st.lists(
    st.tuples(st.sampled_from(["fail", "recover", "other", "start"]), st.integers(0, 30), st.floats(0, 20)), max_size=150
)


@given(EVENTS)
def test_whatever_happens_an_open_circuit_starts_one_probe_a_second_at_most_and_charges_nothing(events):
    found, now, last, was_open = circuit(), 0.0, None, False
    for what, number, pause in events:
        now += pause
        if what == "start" and found.state is CircuitState.OPEN:
            room = found.room(now)
            assert room in (0, 1)
            if room:
                assert last is None or not was_open or now - last >= OPTIONS.first_probe
                found.started([f"m{number}"], now)
                last = now
        elif what == "recover":
            found.recovered(f"m{number}", now)
        elif what == "other":
            found.ended_otherwise(f"m{number}", now)
        elif what == "fail":
            before = found.state
            charge = found.failed(f"m{number}", "refused", now).charge
            assert before is CircuitState.CLOSED or charge is Charge.OUTAGE
        was_open = found.state is CircuitState.OPEN
        last = last if was_open else None


@given(EVENTS)
def test_whatever_happens_an_open_circuit_is_probed_again_within_the_longest_interval(events):
    found, now = circuit(), 0.0
    for what, number, pause in events:
        now += pause
        if what == "fail":
            found.failed(f"m{number}", "refused", now)
        elif what == "start" and found.room(now):
            found.started([f"m{number}"], now)
    for running in list(found._running):
        found.ended_otherwise(running, now)
    if found.state is CircuitState.OPEN:
        assert found.next_probe_in(now) <= OPTIONS.longest_probe
        assert found.room(now + OPTIONS.longest_probe) == 1


@given(st.integers(1, 500), st.integers(0, 60))
def test_whatever_was_before_a_dependency_that_works_again_ends_closed(messages, pause):
    found, now = circuit(), 0.0
    for each in range(messages):
        now += pause / 100
        found.failed(f"m{each}", "refused", now)
    for each in range(1000):
        now += 15
        room = found.room(now)
        if room is None:
            return
        names = [f"again-{each}-{number}" for number in range(room)]
        found.started(names, now)
        for name in names:
            found.recovered(name, 2)
    pytest.fail("It stays open")


@pytest.mark.parametrize(
    "wrong", [{"messages": 1}, {"within": 0}, {"first_probe": 0}, {"first_probe": 20}, {"longest_probe": float("inf")}]
)
def test_options_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ConfigError, match="Breaker"):
        Breaker(**wrong)
