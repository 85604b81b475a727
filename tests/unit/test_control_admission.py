"""A bad deploy dead-letters a bounded number of messages, then its source is paused; ordinary poison never pauses one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison.control.admission import LONGEST_INTERVAL, PROBE_INTERVAL, DeadLetterAdmission, TooManyDead
from unpoison.control.options import Admission
from unpoison.errors import ConfigError

OPTIONS = Admission()


def test_of_a_bad_deploy_so_many_become_dead_letters_and_the_rest_is_kept():
    admission = DeadLetterAdmission(OPTIONS)
    admitted = [admission.admits("KeyError: 'id'", number / 3000) for number in range(5000)]
    assert (sum(admitted), admitted[:50]) == (50, [True] * 50)
    pause = admission.pause
    assert (pause.dead, pause.ended, pause.samples) == (51, 51, ("KeyError: 'id'",))


def test_after_an_hour_of_successes_a_bad_deploy_is_noticed_within_its_window():
    admission = DeadLetterAdmission(OPTIONS)
    for second in range(3600):
        admission.succeeded(1000, second)
    admitted = sum(admission.admits("KeyError: 'id'", 3600 + number / 1000) for number in range(60_000))
    assert admission.pause is not None
    assert admitted <= 6_000 * OPTIONS.share * 1.3


@given(st.integers(1, 10_000), st.floats(0.001, 10))
def test_one_poison_in_a_thousand_moves_nothing(thousands, rate):
    admission, now = DeadLetterAdmission(OPTIONS), 0.0
    for number in range(min(thousands, 300)):
        now += 1 / rate
        admission.succeeded(999, now)
        assert admission.admits(f"error {number}", now)
    assert admission.pause is None


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 80), st.floats(0, 30)), max_size=60))
def test_whatever_comes_a_window_never_holds_more_dead_letters_than_both_bounds_allow(batches):
    admission, now, dead, ended = DeadLetterAdmission(OPTIONS), 0.0, [], []
    for good, bad, pause in batches:
        now += pause
        admission.succeeded(good, now)
        ended += [now] * good
        for _ in range(bad):
            if admission.admits("error", now):
                dead.append(now)
                ended.append(now)
                recent = [at for at in dead if at > now - OPTIONS.within * 29 / 30]
                all_ended = [at for at in ended if at > now - OPTIONS.within * 31 / 30]
                assert len(recent) <= max(OPTIONS.at_least, OPTIONS.share * len(all_ended))
            else:
                assert admission.pause is not None


def test_while_it_is_paused_a_probe_a_minute_may_start():
    admission = DeadLetterAdmission(OPTIONS)
    assert admission.next_probe_in(0) is None
    while admission.admits("error", 10):
        pass
    assert (admission.next_probe_in(10), admission.next_probe_in(69), admission.next_probe_in(71)) == (60, 1, 0)
    admission.probe_started(71)
    assert not admission.admits("error", 72), "a probe that fails is kept too"
    assert admission.next_probe_in(71) == PROBE_INTERVAL


def test_after_it_is_resumed_what_was_counted_before_does_not_count():
    admission = DeadLetterAdmission(OPTIONS)
    while admission.admits("old", 10):
        pass
    admission.resume()
    assert admission.next_probe_in(10) is None
    assert sum(admission.admits("new", 11) for _ in range(100)) == OPTIONS.at_least
    assert admission.pause is not None
    assert admission.pause.samples == ("new",)


def relapsed(admission, now):
    """Paused; then a probe succeeds, and all that follow fail. Returns how many became dead letters, and how many were kept."""
    while admission.admits("KeyError: 'id'", now):
        pass
    admission.try_again(now)
    admitted, kept = 0, 0
    while admission.pause is None:
        if admission.admits("KeyError: 'id'", now):
            admitted += 1
        else:
            kept += 1
    return admitted, kept


def test_after_a_probe_nothing_becomes_a_dead_letter_and_a_few_failures_pause_the_source_again():
    assert relapsed(DeadLetterAdmission(OPTIONS), 10.0) == (0, 6)


def test_where_most_succeed_after_a_probe_the_source_goes_on_for_longer_and_still_makes_no_letter():
    admission, ended = DeadLetterAdmission(OPTIONS), 0
    relapsed(admission, 0.0)
    admission.try_again(60.0)
    while admission.pause is None:
        admission.succeeded(3, 61.0)
        assert not admission.admits("KeyError: 'id'", 61.0)
        ended += 4
    assert (admission.pause.dead, admission.pause.ended, ended) == (201, 804, 804)


def test_the_time_to_the_next_probe_doubles_with_each_relapse_up_to_a_quarter_of_an_hour():
    admission, now, intervals = DeadLetterAdmission(OPTIONS), 0.0, []
    for _ in range(7):
        relapsed(admission, now)
        intervals.append(admission.next_probe_in(now))
        assert admission.pause.interval == intervals[-1]
        now += intervals[-1]
        assert admission.next_probe_in(now) == 0
        admission.try_again(now)
    assert intervals == [120, 240, 480, 900, 900, 900, 900]
    assert intervals[-1] == LONGEST_INTERVAL


def test_a_probe_that_fails_does_not_lengthen_the_time_to_the_next_one():
    admission = DeadLetterAdmission(OPTIONS)
    while admission.admits("error", 0):
        pass
    admission.probe_started(60)
    assert not admission.admits("error", 61)
    assert admission.next_probe_in(60) == PROBE_INTERVAL


def letters_of_minute(admission, minute):
    """Of a minute with nine successes for each failure."""
    admitted = 0
    for second in range(60):
        admission.succeeded(27, 60 * minute + second)
        admitted += sum(admission.admits("poison", 60 * minute + second) for _ in range(3))
    return admitted


def test_each_clean_minute_on_probation_admits_more_letters_until_all_is_as_before():
    admission = DeadLetterAdmission(OPTIONS)
    relapsed(admission, 0.0)
    admission.try_again(0.0)
    assert [letters_of_minute(admission, minute) for minute in range(6)] == [0, 5, 10, 20, 40, 180]
    assert not admission.is_on_probation
    assert relapsed(admission, 10_000.0) == (0, 6)
    assert admission.pause.interval == 2 * PROBE_INTERVAL, "the time between probes begins anew too"


def test_a_minute_without_messages_shows_nothing():
    admission = DeadLetterAdmission(OPTIONS)
    relapsed(admission, 0.0)
    admission.try_again(0.0)
    assert not admission.admits("late", 100_000.0)
    assert admission.is_on_probation


def test_messages_that_were_kept_are_not_the_first_to_show_whether_others_succeed():
    admission = DeadLetterAdmission(OPTIONS)
    assert admission.tries_kept(0.0)
    admission.try_again(0.0)
    assert [admission.tries_kept(now) for now in (0.0, 59.0, 60.0)] == [False, False, True]


def test_on_probation_those_that_were_kept_before_are_no_further_evidence():
    admission = DeadLetterAdmission(OPTIONS)
    admission.try_again(0.0)
    assert not any(admission.admits("kept", 1.0, was_kept=True) for _ in range(1_000))
    assert admission.pause is None
    admission.succeeded(1, 60.0)
    assert sum(admission.admits("kept", 61.0, was_kept=True) for _ in range(1_000)) == 5
    assert admission.pause is None


def test_a_person_gives_all_letters_back_at_once():
    admission = DeadLetterAdmission(OPTIONS)
    relapsed(admission, 0.0)
    admission.resume()
    assert sum(admission.admits("new", 1.0) for _ in range(100)) == OPTIONS.at_least
    assert admission.next_probe_in(1.0) == PROBE_INTERVAL


def test_a_pause_of_another_consumer_counts_as_a_relapse_and_its_interval_holds_here_too():
    admission, pause = DeadLetterAdmission(OPTIONS), TooManyDead(0.0, 51, 51, 60.0, ("KeyError",), 240.0)
    admission.adopt(pause, 0.0)
    assert admission.next_probe_in(0.0) == 240
    admission.try_again(1.0)
    admission.adopt(pause, 2.0)
    assert admission.next_probe_in(2.0) == 480


@given(st.lists(st.tuples(st.sampled_from(["good", "bad", "probe", "adopt"]), st.floats(0, 200)), max_size=150))
def test_whatever_comes_the_first_minute_after_a_probe_makes_no_letter_and_the_next_probe_comes(steps):
    admission, now, probed = DeadLetterAdmission(Admission(at_least=10)), 0.0, float("-inf")
    for what, pause in steps:
        now += pause
        match what:
            case "good":
                admission.succeeded(1, now)
            case "bad":
                letters = sum(admission.admits("error", now) for _ in range(20))
                assert not letters or now - probed >= OPTIONS.within
                assert (admission.next_probe_in(now) or 0.0) <= LONGEST_INTERVAL + 0.001
            case "probe":
                if admission.next_probe_in(now) == 0:
                    admission.try_again(now)
                    probed = now
            case "adopt":
                admission.adopt(TooManyDead(now, 1, 1, 60.0, (), 1e9), now)


@pytest.mark.parametrize("wrong", [{"share": 0}, {"share": 1}, {"at_least": 0}, {"within": 0}, {"within": float("inf")}])
def test_options_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ConfigError, match="Admission"):
        Admission(**wrong)
