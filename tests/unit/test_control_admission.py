"""A bad deploy dead-letters a bounded number of messages, then its source is paused; ordinary poison never pauses one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison.control.admission import PROBE_INTERVAL, DeadLetterAdmission
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


@pytest.mark.parametrize("wrong", [{"share": 0}, {"share": 1}, {"at_least": 0}, {"within": 0}, {"within": float("inf")}])
def test_options_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ConfigError, match="Admission"):
        Admission(**wrong)
