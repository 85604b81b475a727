"""What is kept because too many messages were to become dead letters: is it charged, and when may it start again?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison.control.options import NO_CONTROL, ControlOptions
from unpoison.control.source import SourceControl
from unpoison.decide import attempts
from unpoison.flow.settling import GivenUp, SettlementBuilder
from unpoison.model.backoff import Limits
from unpoison.model.failure import Failure
from unpoison.model.message import Counters, Delivery, PastAttempt
from unpoison.model.verdict import ErrorClassification
from unpoison.port.reading import failure_of, unreadable
from unpoison.workers.interface import Ended

PAST = PastAttempt(1, 0.0, "transient", "ConnectionError: refused")
BUG = Failure(classification=ErrorClassification.BUG, rule="bug", type_name="KeyError", text="total")
CRASH = Failure(classification=ErrorClassification.CRASH, rule="signal", type_name="unpoison.Crash", blames_process=True)
LOST = attempts._lost(Counters(losses=5, alone=True, history=(PAST,)))
LIMITS = Limits(max_attempts=2)


def builder(control=None, limits=LIMITS):
    return SettlementBuilder(limits, "a:1", None, lambda: 1e9, lambda: 0.0, control or SourceControl(ControlOptions()))


def message(name, **counters):
    return Delivery(None, "orders", str(name), b"", counters=Counters(**counters))


def paused():
    """The control of a source on which too many messages were to become dead letters."""
    control = SourceControl(ControlOptions())
    while control.refuses_letter(message("dead"), BUG, 0.0) is None:
        pass
    return control


def given_up(build, delivery):
    admission = attempts.admit(delivery.counters, build.limits)
    assert isinstance(admission, attempts.GiveUp)
    return build([GivenUp([delivery], admission.failure)])


def test_a_deploy_that_lowers_the_limit_does_not_make_dead_letters_of_all_that_wait():
    build, dead, kept = builder(), 0, []
    for number in range(500):
        judged = given_up(build, message(number, attempts=3, first_failed_at=1e9 - 1, history=(PAST,)))
        dead += len(judged.settlement.dead)
        kept += judged.settlement.kept
    assert (dead, len(kept), build.control.is_paused) == (50, 450, True)
    assert {(each.counters.attempts, each.counters.history) for each in kept} == {(3, (PAST,))}, "nothing was started"
    assert min(each.after for each in kept) >= 300, "they are not asked for again and again while they cannot start"


def test_without_admission_they_are_dead_letters():
    build = builder(SourceControl(NO_CONTROL))
    assert all(given_up(build, message(number, attempts=2)).settlement.dead for number in range(100))


@pytest.mark.parametrize(
    "counters", [{"losses": 2, "alone": True, "history": (PAST,)}, {"attempts": 1, "losses": 1, "alone": True}]
)
def test_a_suspect_that_is_given_up_is_kept_as_it_is_while_the_source_is_paused(counters):
    (kept,) = builder(paused())([GivenUp([message("suspect", **counters)], LOST)]).settlement.kept
    expected = Counters(**counters)
    assert (kept.counters.charged, kept.counters.losses, kept.counters.alone) == (expected.charged, expected.losses, True)
    assert isinstance(attempts.admit_alone(kept.counters, LIMITS), attempts.GiveUp), "it is not started the next time either"


def test_garbage_becomes_a_dead_letter_also_while_the_source_is_paused():
    build, error = builder(paused()), ValueError("no such header")
    broken = unreadable(None, "orders", "broken", b"\xff", {}, error)
    judged = build([GivenUp([broken], broken.failure), GivenUp([message("odd")], failure_of(error))])
    assert [each.delivery.id for each in judged.settlement.dead] == ["broken", "odd"]


def test_garbage_pauses_nothing():
    build = builder()
    for number in range(500):
        broken = unreadable(None, "orders", str(number), b"\xff", {}, ValueError("no such header"))
        assert build([GivenUp([broken], broken.failure)]).settlement.dead
    assert build.control.changes == []


def ended(delivery, failure):
    return Ended([delivery], {0: failure})


def test_a_bug_that_is_kept_is_not_charged_and_a_crash_is():
    build = builder(paused())
    (bug,) = build([ended(message("bug", attempts=1), BUG)]).settlement.kept
    assert (bug.counters.attempts, len(bug.counters.history)) == (1, 1)
    judged = build([ended(message("killer", attempts=1, history=(PAST,)), CRASH)])
    (killer,) = judged.settlement.kept
    assert (killer.counters.attempts, len(killer.counters.history)) == (2, 2)
    assert judged.events[0].ruling.verdict.charged


@given(st.integers(1, 6), st.lists(st.booleans(), max_size=40))
def test_however_long_letters_are_kept_a_killer_starts_no_more_often_than_its_limit(limit, pauses):
    limits, counters, starts = Limits(max_attempts=limit), Counters(), 0
    for is_paused in [*pauses, False]:
        build, killer = builder(paused() if is_paused else None, limits), message("killer")
        killer = Delivery(None, "orders", "killer", b"", counters=counters)
        if isinstance(attempts.admit(counters, limits), attempts.GiveUp):
            judged = given_up(build, killer)
        else:
            starts += 1
            judged = build([ended(killer, CRASH)])
        if judged.settlement.dead:
            break
        (kept,) = judged.settlement.kept
        counters = kept.counters
    assert starts <= limit
