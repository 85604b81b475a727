"""May a message start, and how do its counters change? Each rule as a table of cases."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison.decide import attempts
from unpoison.decide.attempts import RUN, RUN_FRESH, SET_ASIDE, GiveUp, Run, RunFresh
from unpoison.decide.policy import PoisonPillHandler, Policy, judge
from unpoison.flow.settling import SettlementBuilder
from unpoison.model import verdict
from unpoison.model.backoff import Limits
from unpoison.model.failure import Failure
from unpoison.model.message import UNTRIED, Counters, Delivery, MessageMetadata, PastAttempt, metadata_of
from unpoison.model.verdict import ErrorClassification
from unpoison.model.wording import counted
from unpoison.reporting.report import Report
from unpoison.testing import given as example
from unpoison.workers.interface import Ended

NOW = 1_000.0


def limits(limit=5, **others):
    return Limits(limit, **others)


def failure(kind=ErrorClassification.TRANSIENT, **facts):
    return Failure(classification=kind, rule="r", type_name="Error", text="text", **facts)


def delivery(**counters):
    return Delivery(1, "orders", "m-1", b"", counters=Counters(**counters))


any_counters = st.builds(
    Counters,
    attempts=st.integers(0, 7),
    vanished=st.integers(0, 2),
    losses=st.integers(0, 7),
    alone=st.booleans(),
    fresh=st.booleans(),
    interrupted=st.integers(0, 3),
    replays=st.integers(0, 3),
    first_failed_at=st.none() | st.just(5.0),
)
any_limits = st.builds(Limits, st.none() | st.integers(1, 6), by_policy=st.sampled_from([0, 0, 8]))


@pytest.mark.parametrize(
    ("counters", "charged"),
    [
        ({}, 0),
        ({"attempts": 2}, 2),
        ({"vanished": 1}, 0),
        ({"vanished": 2}, 1),
        ({"losses": 3}, 3),
        ({"attempts": 1, "vanished": 2, "losses": 1}, 3),
        ({"interrupted": 4, "replays": 2}, 0),
    ],
)
def test_held_against_a_message_are_seen_failures_losses_alone_and_one_for_two_losses_in_company(counters, charged):
    assert Counters(**counters).charged == charged
    assert delivery(**counters).attempt == charged + 1


@pytest.mark.parametrize(
    ("limit", "counters", "expected"),
    [
        (5, {}, RUN),
        (5, {"attempts": 3}, RUN),
        (None, {"attempts": 100}, RUN),
        # A last attempt runs anywhere; one after evidence against its process is the first in a new worker.
        (5, {"attempts": 4}, RUN),
        (2, {"attempts": 1}, RUN),
        (1, {}, RUN),
        (5, {"attempts": 1, "fresh": True}, RUN_FRESH),
        (None, {"attempts": 1, "fresh": True}, RUN_FRESH),
        # Returned once: as usual while it has three attempts left, else alone.
        (5, {"vanished": 1}, RUN),
        (5, {"vanished": 1, "attempts": 2}, RUN),
        (5, {"vanished": 1, "attempts": 2, "fresh": True}, RUN_FRESH),
        (5, {"vanished": 1, "attempts": 3}, SET_ASIDE),
        (3, {"vanished": 1}, RUN),
        (3, {"vanished": 1, "attempts": 1}, SET_ASIDE),
        (2, {"vanished": 1}, SET_ASIDE),
        (1, {"vanished": 1}, SET_ASIDE),
        (None, {"vanished": 1, "attempts": 100}, RUN),
        # Returned twice, or told to: alone, and a fresh worker is part of that.
        (5, {"vanished": 2}, SET_ASIDE),
        (None, {"vanished": 2}, SET_ASIDE),
        (5, {"alone": True}, SET_ASIDE),
        (5, {"vanished": 2, "fresh": True}, SET_ASIDE),
        # It was on its way to running alone when it was lost again: not yet given up, for it has not run alone.
        (5, {"vanished": 2, "attempts": 4}, SET_ASIDE),
        (1, {"vanished": 2}, SET_ASIDE),
    ],
)
def test_a_message_fetched_among_others_starts_or_is_set_aside(limit, counters, expected):
    assert attempts.admit(Counters(**counters), limits(limit)) == expected


@pytest.mark.parametrize(("limit", "used"), [(5, 5), (3, 5), (1, 1)])
def test_a_message_whose_limit_was_lowered_meanwhile_is_given_up_without_a_start(limit, used):
    past = PastAttempt(used, NOW, "transient", "ConnectionError: refused")
    admission = attempts.admit(Counters(attempts=used, history=(past,)), limits(limit))
    assert isinstance(admission, GiveUp)
    given_up = admission.failure
    assert not given_up.started
    assert given_up.text == "ConnectionError: refused"
    assert given_up.rule == f"it came with {counted(used, 'attempt')} behind it and the limit is {limit}, so it was not started"


@pytest.mark.parametrize(
    ("limit", "counters"),
    [
        (5, {"vanished": 2}),
        (5, {"vanished": 1, "attempts": 4}),
        (5, {"vanished": 2, "attempts": 1, "losses": 2}),
        (1, {"vanished": 1}),
        (None, {"vanished": 2, "losses": 50}),
    ],
)
def test_a_suspect_with_attempts_left_runs(limit, counters):
    assert attempts.admit_alone(Counters(**counters, alone=True), limits(limit)) is RUN_FRESH


@pytest.mark.parametrize(
    ("limit", "counters"),
    [
        (5, {"vanished": 2, "losses": 4}),
        (5, {"vanished": 1, "losses": 5}),
        (5, {"vanished": 1, "attempts": 4, "losses": 1}),
        (1, {"vanished": 1, "losses": 1}),
        (2, {"vanished": 2, "losses": 1}),
    ],
)
def test_a_suspect_whose_losses_reach_the_limit_is_given_up_as_lost(limit, counters):
    suspect = Counters(**counters, alone=True)
    admission = attempts.admit_alone(suspect, limits(limit))
    assert isinstance(admission, GiveUp)
    assert admission.failure.classification == "lost"
    assert admission.failure.rule == f"its consumer vanished {counted(suspect.losses, 'time')} while it ran alone in it"


def test_a_suspect_that_was_never_lost_alone_is_not_called_lost_when_the_limit_was_lowered():
    admission = attempts.admit_alone(Counters(attempts=3, vanished=1, alone=True), limits(2))
    assert isinstance(admission, GiveUp)
    assert admission.failure.classification == "unknown"


@pytest.mark.parametrize("counters", [Counters(attempts=5), Counters(vanished=2, losses=4, alone=True)])
def test_what_is_given_up_without_a_start_is_a_dead_letter_that_counts_no_further_attempt(counters):
    admission = (attempts.admit_alone if counters.alone else attempts.admit)(counters, limits(5))
    message = Delivery(1, "orders", "m-1", b"", counters=counters)
    now = datetime.fromtimestamp(NOW, UTC)
    ruling = judge(limits(5), "m-1", metadata_of(message, admission.failure), admission.failure, now)
    assert isinstance(ruling.verdict, verdict.DeadLetter)
    assert ruling.rule == "max-attempts: attempt 5 of 5 failed, the limit set by the consumer"
    assert attempts.failed(counters, admission.failure, NOW).charged == counters.charged == 5


@pytest.mark.parametrize(
    ("limit", "before", "vanished"),
    [
        (5, {"vanished": 2}, 2),
        (5, {"vanished": 2, "attempts": 3}, 2),
        (5, {"vanished": 1, "attempts": 4}, 1),
        (5, {"vanished": 2, "attempts": 4}, 1),
        (1, {"vanished": 2}, 1),
        (None, {"vanished": 2, "attempts": 40}, 2),
    ],
)
def test_a_message_set_aside_keeps_its_losses_but_for_one_that_would_cost_it_its_last_attempt(limit, before, vanished):
    after = attempts.set_aside(Counters(**before), limits(limit))
    assert after == Counters(**before | {"vanished": vanished}, alone=True)
    assert attempts.admit_alone(after, limits(limit)) is RUN_FRESH


def test_a_seen_failure_is_charged_and_dated():
    once = attempts.failed(UNTRIED, failure(), NOW)
    assert once == Counters(attempts=1, first_failed_at=NOW, history=(PastAttempt(1, NOW, "transient", "Error: text"),))
    twice = attempts.failed(once, failure(ErrorClassification.TIMEOUT), NOW + 1)
    assert (twice.attempts, twice.first_failed_at, twice.fresh) == (2, NOW, False)
    assert twice.history[1] == PastAttempt(2, NOW + 1, "timeout", "Error: text")


@pytest.mark.parametrize("facts", [{"charged": False}, {"started": False}, {"charged": False, "started": False}])
def test_a_failure_that_is_not_charged_or_never_started_is_dated_and_not_counted(facts):
    after = attempts.failed(Counters(attempts=2), failure(**facts), NOW)
    assert (after.attempts, after.first_failed_at, len(after.history)) == (2, NOW, 1)


def test_after_evidence_against_the_process_every_further_start_is_in_a_fresh_worker():
    crashed = attempts.failed(UNTRIED, failure(ErrorClassification.CRASH, blames_process=True), NOW)
    assert crashed.fresh
    assert attempts.failed(crashed, failure(), NOW).fresh
    assert not attempts.failed(UNTRIED, failure(ErrorClassification.TIMEOUT), NOW).fresh


CRASH = {"kind": ErrorClassification.CRASH, "blames_process": True}
RETRY, DEAD = verdict.Retry(timedelta(seconds=3)), verdict.DeadLetter("enough")


@pytest.mark.parametrize(
    ("facts", "ruled", "limit", "in_doubt"),
    [
        # An ordinary exception counts wherever it was raised.
        ({}, DEAD, 5, ""),
        ({}, RETRY, 5, ""),
        # What speaks against the process is charged there, but dead-letters nobody.
        (CRASH, RETRY, 5, ""),
        (CRASH, DEAD, 5, "other messages had used its worker"),
        (CRASH, DEAD, None, "other messages had used its worker"),
        (CRASH, DEAD, 1, ""),
        # In a worker that a check found damaged nothing is charged.
        ({"worker_damage": "sys.stdout"}, RETRY, 5, "its worker was damaged (sys.stdout)"),
        ({"worker_damage": "sys.stdout"}, DEAD, 1, "its worker was damaged (sys.stdout)"),
        # What the handler said itself, and what never reached it, has nothing to do with its worker.
        ({"worker_damage": "umask", "discard": True}, DEAD, 5, ""),
        ({"worker_damage": "umask", "charged": False}, RETRY, 5, ""),
        ({"worker_damage": "umask", "started": False}, DEAD, 5, ""),
    ],
)
def test_what_may_be_anothers_doing_convicts_nobody_in_a_worker_that_others_used(facts, ruled, limit, in_doubt):
    assert attempts.doubt(failure(**facts), ruled, limits(limit)) == in_doubt


def test_what_is_in_doubt_is_booked_like_a_loss_in_company_and_runs_fresh():
    after = attempts.doubted(Counters(attempts=4, vanished=0), failure(**CRASH), NOW)
    assert (after.attempts, after.vanished, after.fresh, after.charged) == (4, 1, True, 4)
    assert after.history[-1].classification == "crash"
    assert attempts.admit(after, limits(5)) is SET_ASIDE
    assert attempts.admit(attempts.doubted(UNTRIED, failure(), NOW), limits(5)) is RUN_FRESH
    assert attempts.doubted(Counters(vanished=2), failure(), NOW).vanished == 2


@pytest.mark.parametrize(("in_used_worker", "dead", "kept"), [(True, 0, 1), (False, 1, 0)])
def test_a_last_attempt_that_crashes_is_given_up_only_in_a_worker_of_its_own(in_used_worker, dead, kept):
    message = delivery(attempts=4)
    ended = Ended([message], {0: failure(**CRASH)}, in_used_worker=in_used_worker)
    judged = SettlementBuilder(limits(), "host", None, lambda: NOW)([ended])
    assert (len(judged.settlement.dead), len(judged.settlement.kept)) == (dead, kept)
    (event,) = judged.events
    assert isinstance(event.ruling.verdict, verdict.Retry) == in_used_worker
    assert event.ruling.rule.startswith("in-doubt: other messages had used its worker" if in_used_worker else "max-attempts")


def test_a_failure_in_a_damaged_worker_keeps_the_delay_it_would_have_had():
    ended = Ended([delivery()], {0: failure(worker_damage="umask", retry_after=7.0)}, in_used_worker=True)
    (kept,) = SettlementBuilder(limits(), "host", None, lambda: NOW)([ended]).settlement.kept
    assert (kept.after, kept.counters.attempts, kept.counters.vanished) == (7.0, 0, 1)


def test_a_seen_failure_forgets_nothing_that_is_known_of_losses():
    before = Counters(attempts=1, vanished=2, losses=2, alone=True, fresh=True, interrupted=1, replays=1)
    after = attempts.failed(before, failure(), NOW)
    assert after == Counters(
        attempts=2,
        vanished=2,
        losses=2,
        alone=True,
        fresh=True,
        interrupted=1,
        replays=1,
        first_failed_at=NOW,
        history=(PastAttempt(5, NOW, "transient", "Error: text"),),
    )


def test_the_history_keeps_the_first_and_the_latest_attempts():
    counters = UNTRIED
    for moment in range(100):
        counters = attempts.failed(counters, failure(), float(moment))
    assert [past.at for past in counters.history] == [*range(10), *range(90, 100)]
    for moment in range(100, 103):
        counters = counters.marked("host", float(moment))
    assert [past.at for past in counters.history] == [*range(10), *range(93, 103)], "starts alone follow the same rule"


@pytest.mark.parametrize(
    ("before", "alone", "after"),
    [
        ({}, True, {"vanished": 1, "alone": True}),
        ({}, False, {"vanished": 1}),
        ({"vanished": 1, "attempts": 2}, False, {"vanished": 2, "attempts": 2}),
        ({"vanished": 2}, True, {"vanished": 2, "alone": True}),
        ({"alone": True}, False, {"vanished": 1, "alone": True}),
    ],
)
def test_one_that_was_taken_down_by_others_is_not_charged_but_noted(before, alone, after):
    assert attempts.bystander(Counters(**before), alone=alone) == Counters(**after)


def test_one_that_a_planned_stop_cut_off_is_not_charged_but_noted():
    once = attempts.interrupted(Counters(attempts=1, vanished=1), NOW)
    assert once == Counters(attempts=1, vanished=1, interrupted=1, first_failed_at=NOW)
    assert attempts.interrupted(once, NOW + 5) == Counters(attempts=1, vanished=1, interrupted=2, first_failed_at=NOW)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"vanished": 1}),
        ({"vanished": 1, "attempts": 3}, {"vanished": 2, "attempts": 3}),
        ({"vanished": 2}, {"vanished": 2}),
        ({"fresh": True}, {"fresh": True, "vanished": 1}),
        ({"vanished": 1, "losses": 1, "alone": True}, {"vanished": 1, "losses": 1, "alone": True}),
    ],
)
def test_coming_back_counts_for_those_that_ran_in_company_and_is_on_record_already_for_a_suspect(before, after):
    assert Counters(**before).returned() == Counters(**after)


def test_the_mark_of_a_suspect_says_who_started_it_and_when():
    marked = Counters(attempts=1, vanished=2, losses=1, alone=True).marked("host-7", NOW)
    assert (marked.attempts, marked.vanished, marked.losses, marked.alone) == (1, 2, 2, True)
    assert marked.history == (PastAttempt(4, NOW, "lost", "started alone on host-7 and never ended: that process vanished"),)


@pytest.mark.parametrize(
    ("classification", "expected"),
    [
        ("crash", Counters(vanished=1, alone=True, replays=3)),
        ("lost", Counters(vanished=1, alone=True, replays=3)),
        ("timeout", Counters(replays=3)),
        ("permanent", Counters(replays=3)),
    ],
)
def test_a_replay_begins_anew_but_alone_if_the_message_took_a_process_down(classification, expected):
    letter = example.letter_of(delivery(attempts=5, vanished=2, losses=1, replays=2))
    assert msgspec.structs.replace(letter, classification=classification).replayed() == expected


@given(any_counters, any_limits)
def test_nothing_starts_above_the_limit_and_no_suspect_starts_in_company(counters, limits):
    admission = attempts.admit(counters, limits)
    if isinstance(admission, Run | RunFresh):
        assert not counters.alone
        assert counters.vanished < 2
        assert limits.highest is None or counters.attempts < limits.highest
    alone = attempts.admit_alone(counters, limits)
    if isinstance(alone, RunFresh) and limits.highest is not None:
        assert counters.charged < limits.highest


@given(any_counters, any_limits)
def test_a_suspect_that_is_set_aside_gets_its_run_alone_unless_its_attempts_are_used_up(counters, limits):
    if attempts.admit(counters, limits) is SET_ASIDE and not counters.losses:
        aside = attempts.set_aside(counters, limits)
        assert aside.alone
        assert attempts.admit_alone(aside, limits) is RUN_FRESH


@given(any_counters, st.booleans(), st.booleans(), st.booleans())
def test_no_counter_goes_down_and_no_flag_is_cleared(counters, charged, started, alone):
    changed = [
        attempts.failed(counters, failure(charged=charged, started=started), NOW),
        attempts.doubted(counters, failure(charged=charged, started=started), NOW),
        attempts.bystander(counters, alone=alone),
        attempts.interrupted(counters, NOW),
        counters.returned(),
        counters.marked("host", NOW),
    ]
    for after in changed:
        for name in ("attempts", "vanished", "losses", "alone", "fresh", "interrupted", "replays", "charged"):
            assert getattr(after, name) >= getattr(counters, name), name
        assert after.first_failed_at == counters.first_failed_at or counters.first_failed_at is None
        assert after.history[: len(counters.history)] == counters.history


def test_a_policy_with_a_higher_limit_is_heeded_to_the_end():
    handler = PoisonPillHandler(
        max_attempts=3, policies={ConnectionError: Policy(max_attempts=7), OSError: Policy(max_attempts=2)}
    )
    assert (handler.limits.max_attempts, handler.limits.highest) == (3, 7)
    counters, starts = UNTRIED, 0
    while not isinstance(attempts.admit(counters, handler.limits), GiveUp):
        starts += 1
        metadata = MessageMetadata("m-1", counters.charged + 1)
        failed = handler.failure(ConnectionError(), metadata)
        if isinstance(judge(handler.limits, "m-1", metadata, failed, datetime.now(UTC)).verdict, verdict.DeadLetter):
            break
        counters = attempts.failed(counters, failed, NOW)
    assert starts == 7


def test_what_a_planned_stop_did_not_let_start_is_handed_back_as_it_came():
    message = delivery(attempts=2, vanished=1)
    judged = SettlementBuilder(limits(), "host", None, lambda: NOW).released([message], [])
    assert [(kept.counters, kept.after) for kept in judged.settlement.kept] == [(message.counters, 0.0)]
    assert not judged.events


def test_what_planned_stops_cut_off_starts_again_until_it_is_too_old():
    decide = SettlementBuilder(limits(max_age=timedelta(hours=1)), "host", None, lambda: NOW)
    young, old = delivery(interrupted=9, first_failed_at=NOW - 3599), delivery(interrupted=9, first_failed_at=NOW - 3600)
    judged = decide.released([], [young, old])
    assert [(kept.delivery, kept.counters.interrupted, kept.after) for kept in judged.settlement.kept] == [(young, 10, 0.0)]
    (dead,) = judged.settlement.dead
    assert dead.delivery is old
    assert dead.letter.rule == "max-age: it has been failing for 1:00:00, the cap is 1:00:00"
    assert "planned stops cut it off, 10 times by now" in dead.letter.reason
    assert dead.letter.attempts == 0
    assert [event.delivery for event in judged.events] == [old]


def test_the_log_says_why_a_failure_was_not_charged(caplog):
    ended = Ended([delivery(attempts=4)], {0: failure(**CRASH)}, in_used_worker=True)
    (event,) = SettlementBuilder(limits(), "host", None, lambda: NOW)([ended]).events
    Report().failed(event)
    (line,) = caplog.messages
    assert "It is not charged (in-doubt: other messages had used its worker, so it runs again in a fresh worker" in line
