"""What happens to a message next? The whole decision, from an exception to a verdict."""

import dataclasses
import random
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.classifying import BUG, PERMANENT, THROTTLED, TRANSIENT, UNKNOWN, raised
from unpoison.decide.policy import PoisonPillHandler, Policy, judge
from unpoison.errors import ConfigError, Discard, Permanent, RetryLater, Throttled
from unpoison.model import verdict
from unpoison.model.backoff import DEFAULT_BACKOFF, LONGEST, Backoff, Limits
from unpoison.model.failure import Failure
from unpoison.model.message import Message, MessageMetadata
from unpoison.model.verdict import ErrorClassification

NOW = datetime(2026, 10, 21, 7, 28, tzinfo=UTC)
MESSAGE = Message("m-1", "orders", b"{}")
RETRIED = [kind for kind in ErrorClassification if kind not in (PERMANENT, BUG, ErrorClassification.INVALID)]
EXCEPTIONS = [ConnectionError(), ValueError(), IndexError(), RuntimeError(), Throttled(1), RetryLater(1), Discard("x")]
EXACT = Backoff.exponential(jitter=False)

limits_of_attempts = st.none() | st.integers(1, 12)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - Hypothesis wants them bare


def failed(kind=TRANSIENT, **facts):
    return Failure(classification=kind, rule="r", type_name="Error", **facts)


def rule_on(exc, handler=None, attempt=1, now=NOW, **metadata):
    """From an exception to the ruling, the way that the flow goes."""
    handler = handler or PoisonPillHandler()
    facts = MessageMetadata(MESSAGE.id, attempt, **metadata)
    return handler.judge(MESSAGE, facts, handler.failure(exc, facts), now)


@st.composite
def failures(draw):
    """Every failure that a worker may report."""
    return failed(
        draw(st.sampled_from(ErrorClassification)),
        retry_after=draw(st.none() | st.floats(0, 1e300)),
        charged=draw(st.booleans()),
        discard=draw(st.booleans()),
        refused=draw(st.none() | st.just("said no")),
        max_attempts=draw(limits_of_attempts),
        backoff=draw(st.none() | st.just(Backoff.fixed(3))),
    )


@st.composite
def cases(draw):
    """All arguments of a judgement."""
    ages = st.none() | st.timedeltas(timedelta(), timedelta(days=400))
    limits = Limits(draw(limits_of_attempts), draw(ages), draw(st.sampled_from([DEFAULT_BACKOFF, EXACT, Backoff.list([1, 9])])))
    first = draw(st.none() | moments)
    metadata = MessageMetadata(draw(st.text(st.characters())), draw(st.integers(1, 20)), draw(limits_of_attempts), first)
    return limits, metadata.message_id, metadata, draw(failures()), draw(moments)


@pytest.mark.parametrize("kind", list(ErrorClassification))
def test_each_kind_of_failure_has_its_response(kind):
    ruling = judge(Limits(backoff=EXACT), "m-1", MessageMetadata("m-1", 2), failed(kind), NOW)
    assert ruling.classification is kind
    if kind in RETRIED:
        assert ruling.verdict == verdict.Retry(timedelta(seconds=2))
    else:
        assert isinstance(ruling.verdict, verdict.DeadLetter)


@pytest.mark.parametrize(
    ("exc", "attempt", "expected"),
    [
        (ConnectionError(), 1, verdict.Retry(timedelta(seconds=1))),
        (ConnectionError(), 4, verdict.Retry(timedelta(seconds=8))),
        (RuntimeError(), 1, verdict.Retry(timedelta(seconds=1))),
        (RetryLater(30), 1, verdict.Retry(timedelta(seconds=30), charged=False)),
        (RetryLater(30), 5, verdict.Retry(timedelta(seconds=30), charged=False)),
        (RetryLater(0), 1, verdict.Retry(timedelta(seconds=1), charged=False)),
        (RetryLater(9), 5, verdict.Retry(timedelta(seconds=16), charged=False)),
        (Throttled(9), 4, verdict.Retry(timedelta(seconds=9), charged=False)),
        (Throttled(), 1, verdict.Retry(timedelta(seconds=1), charged=False)),
        (Discard("a test order"), 1, verdict.Discard("a test order")),
        (Discard("a test order"), 5, verdict.Discard("a test order")),
        (
            KeyError("total"),
            1,
            verdict.DeadLetter("permanent: no retry can cure it (KeyError: the same data fails the same way again)"),
        ),
        (
            IndexError(),
            1,
            verdict.DeadLetter("bug: a bug in the handler: fix it, then replay (IndexError: the code is wrong, not the moment)"),
        ),
        (Permanent("x"), 1, verdict.DeadLetter("permanent: no retry can cure it (the handler raised unpoison.errors.Permanent)")),
        (
            RuntimeError(),
            5,
            verdict.DeadLetter("unknown: attempt 5 of 5 failed, the limit set by the consumer (RuntimeError: no rule knows it)"),
        ),
    ],
)
def test_from_an_exception_to_a_verdict(exc, attempt, expected):
    assert rule_on(exc, PoisonPillHandler(backoff=EXACT), attempt).verdict == expected


@given(cases())
def test_there_is_no_retry_past_any_limit(case):
    limits, _, metadata, failure, _ = case
    ruling = judge(*case)
    consumer = limits.max_attempts if failure.max_attempts is None else failure.max_attempts
    if isinstance(ruling.verdict, verdict.Retry) and ruling.verdict.charged:
        assert all(limit is None or metadata.attempt < limit for limit in (consumer, metadata.max_attempts))


@given(cases())
def test_a_delay_stays_within_its_bounds(case):
    limits, _, metadata, failure, _ = case
    ruling = judge(*case)
    if not isinstance(ruling.verdict, verdict.Retry):
        return
    after = ruling.verdict.after
    assert timedelta() <= after <= LONGEST
    backoff = failure.backoff or limits.backoff
    asked = None if failure.retry_after is None else min(timedelta(seconds=min(failure.retry_after, 1e10)), LONGEST)
    if failure.charged:
        assert after <= backoff.ceiling(metadata.attempt) if asked is None else after == asked
        return
    longest = max(backoff.ceiling(step) for step in range(1, 65))
    assert backoff.ceiling(metadata.attempt) / 2 <= after
    assert after <= longest if asked is None else asked <= after <= max(asked, longest)


@given(cases())
def test_no_wait_that_was_asked_for_goes_past_what_is_left_of_max_age(case):
    limits, _, metadata, failure, now = case
    ruling = judge(*case)
    if limits.max_age is None or failure.retry_after is None or not isinstance(ruling.verdict, verdict.Retry):
        return
    first = metadata.first_failure_time
    waited = timedelta() if first is None else max(now - first, timedelta())
    assert timedelta(seconds=failure.retry_after) <= limits.max_age - waited


@pytest.mark.parametrize("asked", [10**9, 86_401])
def test_a_wait_past_max_age_is_a_dead_letter_at_once_that_names_both(asked):
    ruling = rule_on(Throttled(asked))
    assert isinstance(ruling.verdict, verdict.DeadLetter)
    day = "1 day, 0:00:00"
    assert ruling.rule == f"max-age: it asks to wait {timedelta(seconds=asked)}, and of max_age ({day}) {day} are left"
    assert ruling.verdict.reason.startswith("throttled: it asks to wait ")


def test_what_is_left_of_max_age_shrinks_from_the_first_failure_on():
    since = NOW - timedelta(hours=23, seconds=-0.5)
    assert isinstance(rule_on(RetryLater(3_600), first_failure_time=since).verdict, verdict.Retry)
    refused = rule_on(RetryLater(3_602), first_failure_time=since)
    assert refused.rule == "max-age: it asks to wait 1:00:02, and of max_age (1 day, 0:00:00) 1:00:00 are left"


def test_without_max_age_a_wait_may_be_of_any_length():
    assert rule_on(RetryLater(10**9), PoisonPillHandler(max_age=None)).verdict.after == timedelta(seconds=10**9)


@given(
    st.sampled_from([DEFAULT_BACKOFF, EXACT, Backoff.immediate(), Backoff.fixed(0.01), Backoff.fixed(0.5, jitter=True)]),
    st.text(),
)
def test_a_message_that_asks_for_no_wait_starts_a_few_times_in_five_seconds(backoff, message_id):
    """Each start takes a millisecond, and the next one comes as soon as it may."""
    handler, now, starts, first = PoisonPillHandler(backoff=backoff), NOW, 0, None
    while now - NOW < timedelta(seconds=5):
        starts, now = starts + 1, now + timedelta(milliseconds=1)
        first = first or now
        metadata = MessageMetadata(message_id, first_failure_time=first)
        ruling = handler.judge(Message(message_id, "orders", b""), metadata, handler.failure(RetryLater(0), metadata), now)
        now += ruling.verdict.after
    assert starts <= 20


def test_the_rule_says_that_the_backoff_was_longer_than_what_was_asked_for():
    assert rule_on(RetryLater(0)).rule == "backoff: longer than the 0 s asked for: the handler raised unpoison.errors.RetryLater"
    assert rule_on(RetryLater(30)).rule.startswith("retry-after: ")


@given(cases())
def test_every_ruling_is_a_verdict_with_a_reason(case):
    ruling = judge(*case)
    assert isinstance(ruling.verdict, verdict.Retry | verdict.DeadLetter | verdict.Discard)
    assert ruling.classification is case[3].classification
    assert ruling.rule
    if isinstance(ruling.verdict, verdict.DeadLetter):
        assert ruling.verdict.reason.startswith(f"{ruling.classification}: ")
        assert case[3].rule in ruling.verdict.reason


@given(case=cases(), seed=st.integers())
def test_the_judgement_depends_on_nothing_but_its_arguments(case, seed):
    state = random.getstate()
    with pytest.MonkeyPatch.context() as patched:
        first = judge(*case)
        random.seed(seed)
        patched.setattr(time, "time", lambda: 0.0)
        patched.setattr(time, "monotonic", lambda: 0.0)
        patched.setenv("TZ", "Pacific/Auckland")
        time.tzset()
        second = judge(*case)
    time.tzset()
    random.setstate(state)
    assert first == second


def test_the_zone_of_the_machine_does_not_change_a_ruling_on_times_without_one(monkeypatch):
    naive = NOW.replace(tzinfo=None)
    case = (Limits(), "m-1", MessageMetadata("m-1", 1, first_failure_time=naive - timedelta(hours=1)), failed(), naive)
    rulings = []
    for zone in ("UTC", "Pacific/Auckland", "America/Los_Angeles"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        rulings.append(judge(*case))
    monkeypatch.undo()
    time.tzset()
    assert rulings[0] == rulings[1] == rulings[2]


def test_one_moment_in_two_zones_is_one_moment():
    there = NOW.astimezone(timezone(timedelta(hours=13)))
    metadata = MessageMetadata("m-1", 2, first_failure_time=NOW - timedelta(minutes=1))
    assert judge(Limits(), "m-1", metadata, failed(), NOW) == judge(Limits(), "m-1", metadata, failed(), there)


@given(st.integers(1, 30), limits_of_attempts, limits_of_attempts)
def test_a_limit_in_the_metadata_never_widens(attempt, own, narrowing):
    handler = PoisonPillHandler(max_attempts=own)
    without = handler.should_retry(MessageMetadata("m", attempt), ConnectionError())
    narrowed = handler.should_retry(MessageMetadata("m", attempt, narrowing), ConnectionError())
    assert narrowed <= without
    assert narrowed == (without and (narrowing is None or attempt < narrowing))


@pytest.mark.parametrize(
    ("attempt", "metadata", "policy", "retried", "origin"),
    [
        (2, None, None, True, None),
        (3, None, None, False, "the consumer"),
        (2, 2, None, False, "the message's metadata"),
        (3, 10, None, False, "the consumer"),
        (3, 3, None, False, "the consumer"),
        (3, None, 7, True, None),
        (7, None, 7, False, "the policy for this exception"),
        (4, 4, 7, False, "the message's metadata"),
        (1, None, 1, False, "the policy for this exception"),
    ],
)
def test_the_smaller_limit_applies_and_the_rule_says_which(attempt, metadata, policy, retried, origin):
    handler = PoisonPillHandler(max_attempts=3, policies={ConnectionError: Policy(max_attempts=policy)})
    ruling = rule_on(ConnectionError(), handler, attempt, max_attempts=metadata)
    assert isinstance(ruling.verdict, verdict.Retry) is retried
    assert retried or (ruling.rule.startswith("max-attempts: ") and ruling.rule.endswith(f"the limit set by {origin}"))


def test_with_a_limit_of_three_a_transient_failure_of_attempt_three_is_not_retried():
    handler = PoisonPillHandler(max_attempts=3)
    answers = [handler.should_retry(MessageMetadata("m", attempt), ConnectionError()) for attempt in (1, 2, 3, 4)]
    assert answers == [True, True, False, False]
    assert handler.should_retry(MessageMetadata("m", 3, max_attempts=99), ConnectionError()) is False


def test_a_limit_of_one_never_retries_and_none_has_no_limit():
    assert not PoisonPillHandler(max_attempts=1).should_retry(MessageMetadata("m"), ConnectionError())
    assert PoisonPillHandler(max_attempts=None).should_retry(MessageMetadata("m", 10_000), ConnectionError())


@given(st.integers(1, 20), limits_of_attempts, st.sampled_from(EXCEPTIONS))
def test_should_retry_is_a_view_of_the_judgement(attempt, limit, exc):
    handler = PoisonPillHandler(max_attempts=limit)
    judged = isinstance(rule_on(exc, handler, attempt).verdict, verdict.Retry)
    assert handler.should_retry(MessageMetadata(MESSAGE.id, attempt), exc) is judged


@pytest.mark.parametrize(
    ("age", "max_age", "retried"),
    [
        (timedelta(hours=23, minutes=59), timedelta(hours=24), True),
        (timedelta(hours=24), timedelta(hours=24), False),
        (timedelta(days=400), None, True),
        (timedelta(), timedelta(), False),
        (timedelta(hours=-1), timedelta(hours=1), True),
    ],
)
@pytest.mark.parametrize("exc", [ConnectionError(), RetryLater(5), Throttled()])
def test_the_time_cap_counts_from_the_first_failure_and_bounds_uncharged_starts_too(age, max_age, retried, exc):
    ruling = rule_on(exc, PoisonPillHandler(max_age=max_age), first_failure_time=NOW - age)
    assert isinstance(ruling.verdict, verdict.Retry) is retried
    assert retried or ruling.rule.startswith("max-age: ")


def test_a_cap_longer_than_any_clock_is_no_cap():
    assert isinstance(rule_on(ConnectionError(), PoisonPillHandler(max_age=1e300)).verdict, verdict.Retry)


@pytest.mark.parametrize(("minutes", "longest"), [(0, 1), (0.05, 4), (1, 32), (2, 60), (600, 60)])
def test_a_throttled_message_waits_the_longer_the_longer_it_has_been_throttled(minutes, longest):
    handler = PoisonPillHandler(backoff=EXACT)
    ruling = rule_on(Throttled(), handler, attempt=1, first_failure_time=NOW - timedelta(minutes=minutes))
    assert ruling.verdict == verdict.Retry(timedelta(seconds=longest), charged=False)


def test_a_wait_that_no_clock_can_hold_does_not_raise():
    assert rule_on(RetryLater(1e300), PoisonPillHandler(max_age=None)).verdict == verdict.Retry(LONGEST, charged=False)


def test_an_id_that_is_no_utf_8_is_judged_like_any_other():
    rulings = [judge(Limits(), name, MessageMetadata(name), failed(), NOW) for name in ("\ud800", "\ud801")]
    assert rulings[0].verdict != rulings[1].verdict


def delays(count, attempt, now):
    """What so many messages wait that fail at the same moment, as shares of the longest delay."""
    ceiling = DEFAULT_BACKOFF.ceiling(attempt)
    rulings = [judge(Limits(), f"order-{n}", MessageMetadata(f"order-{n}", attempt), failed(), now) for n in range(count)]
    return sorted(ruling.verdict.after / ceiling for ruling in rulings)


def distance_from_even(shares):
    """Kolmogorov and Smirnov's: the largest gap between the shares and a perfectly even spread."""
    return max(max((n + 1) / len(shares) - share, share - n / len(shares)) for n, share in enumerate(shares))


@pytest.mark.parametrize("attempt", [1, 2, 3, 4])
def test_jitter_spreads_500_simultaneous_failures_evenly(attempt):
    # 0.0728 is the distance that one of a hundred truly even draws of 500 exceeds. The arguments are fixed, so are the delays.
    shares = delays(500, attempt, NOW)
    assert distance_from_even(shares) < 0.0728
    assert len(set(shares)) == 500
    assert max(sum(start <= share < start + 0.1 for share in shares) for start in (n / 10 for n in range(10))) < 80


@settings(max_examples=10)  # each is 500 judgements
@given(moments, st.integers(1, 4))
def test_jitter_spreads_at_any_moment(now, attempt):
    # By the Dvoretzky-Kiefer-Wolfowitz bound an even draw of 500 exceeds 0.2 once in 10**17 times.
    assert distance_from_even(delays(500, attempt, now)) < 0.2


def test_the_same_message_waits_differently_after_each_attempt():
    shares = {
        judge(Limits(), "m", MessageMetadata("m", n), failed(backoff=Backoff.fixed(1, jitter=True)), NOW).verdict.after
        for n in (1, 2, 3, 4)
    }
    assert len(shares) == 4


class Careful(PoisonPillHandler):
    """Retries less than the rules would."""

    def should_retry(self, metadata, exc):
        return super().should_retry(metadata, exc) and "fraud" not in str(exc)


class Reckless(PoisonPillHandler):
    """Wants to retry everything for ever."""

    def should_retry(self, metadata, exc):
        return True


def test_a_subclass_can_retry_less():
    refused = rule_on(ConnectionError("fraud"), Careful())
    assert refused.verdict.reason.startswith("transient: Careful.should_retry said no (ConnectionError")
    assert refused.rule == "should-retry: Careful.should_retry said no"
    assert isinstance(rule_on(ConnectionError("slow"), Careful()).verdict, verdict.Retry)


@given(st.integers(1, 20), limits_of_attempts, st.sampled_from(EXCEPTIONS))
def test_a_subclass_cannot_retry_more(attempt, limit, exc):
    own = rule_on(exc, Reckless(max_attempts=limit), attempt).verdict
    assert own == rule_on(exc, PoisonPillHandler(max_attempts=limit), attempt).verdict


def test_a_should_retry_that_raises_changes_nothing_and_the_rule_says_so():
    class Broken(PoisonPillHandler):
        def should_retry(self, metadata, exc):
            raise KeyboardInterrupt

    ruling = rule_on(ConnectionError(), Broken())
    assert isinstance(ruling.verdict, verdict.Retry)
    assert "Broken.should_retry was not heeded, since it raised KeyboardInterrupt" in ruling.rule


def test_an_error_classifier_goes_before_the_rules_and_none_leaves_it_to_them():
    handler = PoisonPillHandler(error_classifier=lambda exc: "transient" if isinstance(exc, KeyError) else None)
    assert handler.classify_error(KeyError()) is TRANSIENT
    assert handler.classify_error(ValueError()) is PERMANENT
    assert isinstance(rule_on(KeyError(), handler).verdict, verdict.Retry)
    assert rule_on(KeyError(), handler).rule == "backoff: error_classifier said transient"
    assert PoisonPillHandler(error_classifier=lambda exc: BUG).classify_error(OSError()) is BUG


@pytest.mark.parametrize("answer", [lambda exc: 1 / 0, lambda exc: "sometimes", lambda exc: 5, lambda exc: exc.nothing])
def test_an_error_classifier_that_fails_leaves_it_to_the_rules_and_the_rule_says_so(answer):
    failure = PoisonPillHandler(error_classifier=answer).failure(ConnectionError(), MessageMetadata("m"))
    assert failure.classification is TRANSIENT
    assert "error_classifier was not heeded" in failure.rule


@pytest.mark.parametrize("options", [{"error_classifier": lambda exc: "bug"}, {"policies": {Exception: Policy(BUG)}}])
def test_what_the_handler_raises_to_steer_is_not_reclassified(options):
    handler = PoisonPillHandler(**options)
    assert rule_on(RetryLater(3), handler).verdict == verdict.Retry(timedelta(seconds=3), charged=False)
    assert rule_on(Discard("x"), handler).verdict == verdict.Discard("x")
    assert handler.classify_error(Permanent("x")) is PERMANENT
    assert handler.classify_error(OSError()) is BUG


def test_a_policy_goes_before_the_classifier_and_the_nearest_class_counts():
    handler = PoisonPillHandler(
        error_classifier=lambda exc: "bug",
        policies={
            OSError: Policy(PERMANENT),
            ConnectionError: Policy(TRANSIENT, max_attempts=2, backoff=Backoff.fixed(7)),
            ValueError: Policy(max_attempts=2),
        },
    )
    assert handler.classify_error(OSError()) is PERMANENT
    assert rule_on(ConnectionResetError(), handler).verdict == verdict.Retry(timedelta(seconds=7))
    assert "policy for ConnectionError" in rule_on(ConnectionResetError(), handler).rule
    assert "of 2 failed" in rule_on(ConnectionResetError(), handler, 2).rule
    assert handler.classify_error(ValueError()) is BUG, "a policy without a classification leaves it to the classifier"


def test_what_is_told_to_be_throttled_is_not_charged_and_keeps_the_server_s_own_wait():
    answer = type("ClientResponseError", (Exception,), {"__module__": "aiohttp.client_exceptions"})()
    answer.status, answer.headers = 429, {"Retry-After": "12"}
    for options in ({"error_classifier": lambda exc: "throttled"}, {"policies": {Exception: Policy(THROTTLED)}}):
        handler = PoisonPillHandler(**options, backoff=EXACT)
        assert rule_on(answer, handler).verdict == verdict.Retry(timedelta(seconds=12), charged=False)
        assert rule_on(ValueError(), handler).verdict == verdict.Retry(timedelta(seconds=1), charged=False)


def explode(*_arguments):
    raise SystemExit


def test_an_exception_that_defends_itself_still_becomes_a_failure():
    hostile = type("Hostile", (Exception,), dict.fromkeys(("__str__", "__repr__"), explode) | {"__class__": property(explode)})
    failure = PoisonPillHandler().failure(raised(lambda: (_ for _ in ()).throw(hostile())), MessageMetadata("m"))
    assert failure.classification is UNKNOWN
    assert "its text could not be read" in failure.text


def test_a_failure_holds_what_the_exception_said_and_where():
    failure = PoisonPillHandler().failure(raised(lambda: {}["total"]), MessageMetadata("m"))
    assert (failure.type_name, failure.text, failure.classification) == ("KeyError", "'total'", PERMANENT)
    assert failure.traceback.endswith("KeyError: 'total'\n")
    assert (failure.charged, failure.started, failure.discard, failure.refused) == (True, True, False, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": 0}, "max_attempts must be 1 or more, got 0. To run each message once use 1; for no limit use None."),
        ({"max_attempts": -1}, "got -1"),
        ({"max_attempts": 2.5}, "got 2.5"),
        ({"max_attempts": True}, "got True"),
        ({"max_attempts": "5"}, "got '5'"),
        ({"max_age": -1}, "max_age must be a duration of 0 seconds or more, got -1"),
        ({"max_age": "1h"}, "got '1h'"),
        ({"backoff": 5}, "backoff must be a Backoff, got 5"),
        ({"policies": {"OSError": Policy()}}, "'OSError'"),
        ({"policies": {int: Policy()}}, "<class 'int'>"),
        ({"policies": {OSError: "transient"}}, "'transient'"),
        ({"policies": {OSError: Policy(max_attempts=0)}}, "Policy for OSError: max_attempts must be 1 or more, got 0"),
        ({"policies": {OSError: Policy(backoff=5)}}, "Policy for OSError: backoff must be a Backoff, got 5"),
    ],
)
def test_what_cannot_work_is_refused_when_the_handler_is_made(options, words):
    with pytest.raises(ConfigError) as caught:
        PoisonPillHandler(**options)
    assert words in str(caught.value)


def test_the_public_shape_is_the_one_that_is_promised():
    handler = PoisonPillHandler(3, None, None, None)
    assert (handler.max_attempts, handler.error_classifier, handler.on_dlq, handler.on_retry) == (3, None, None, None)
    assert dataclasses.astuple(MessageMetadata("m")) == ("m", 1, None, None, None)
    assert PoisonPillHandler().max_attempts == 5
    assert {kind.value for kind in ErrorClassification} >= {"transient", "permanent", "unknown"}
    assert ErrorClassification.TRANSIENT == "transient"  # type: ignore[comparison-overlap]
