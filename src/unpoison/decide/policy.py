"""Decides what happens to a message whose attempt has failed: `PoisonPillHandler`, from facts alone.

There is one decision core for every broker, for Celery and for the console: `judge`. It reads no clock, does no
I/O and logs nothing; the same arguments give the same ruling. Randomness for jitter is drawn from the message's
id, the attempt and the time, so that simultaneous failures spread and a ruling can still be computed again.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from unpoison.body.signature import is_coroutine_function, name_of
from unpoison.classify.classifier import Classified, blames_process, classify
from unpoison.classify.dependency import NO_DEPENDENCY, dependency_of
from unpoison.errors import ConfigError, Steering, seconds
from unpoison.model import verdict
from unpoison.model.backoff import DEFAULT_BACKOFF, MAX_AGE, MAX_ATTEMPTS, Backoff, Limits, bounded, charged_wait, uncharged_wait
from unpoison.model.failure import TEXT_LIMIT, Failure, cap, describe, text_of, type_name
from unpoison.model.message import Message
from unpoison.model.message import MessageMetadata as MessageMetadata  # noqa: PLC0414 - those who use the handler need it too
from unpoison.model.verdict import ErrorClassification, Ruling

_NEVER_RETRIED = {
    ErrorClassification.PERMANENT: "no retry can cure it",
    ErrorClassification.BUG: "a bug in the handler: fix it, then replay",
    ErrorClassification.INVALID: "the message itself is wrong",
}


_ABOUT_DEPENDENCIES = {
    ErrorClassification.TRANSIENT,
    ErrorClassification.THROTTLED,
    ErrorClassification.TIMEOUT,
    ErrorClassification.UNKNOWN,
}
"""Failures that something else than the message may have caused."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What is different for one class of exceptions. What is None stays as the consumer has it."""

    classification: ErrorClassification | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None


NO_POLICY = Policy()


ErrorClassifier = Callable[[BaseException], "ErrorClassification | str | None"]
OnDLQ = Callable[[Message, MessageMetadata, BaseException], Any]
OnFailure = Callable[[Message, MessageMetadata, BaseException], Any]
OnRetry = Callable[[Message, MessageMetadata, float], Any]


@dataclass
class PoisonPillHandler:
    """Decides, from facts alone, what happens to a message whose attempt has failed.

    `error_classifier` may answer with a classification, or None to leave the decision to the built-in rules.
    `on_dlq(message, metadata, exc)` and `on_retry(message, metadata, delay)`, the delay in seconds, are called once each, after
    the verdict was stored; async functions are awaited. `policies` maps exception classes to what is different for them.
    """

    max_attempts: int | None = MAX_ATTEMPTS
    error_classifier: ErrorClassifier | None = None
    on_dlq: OnDLQ | None = None
    on_retry: OnRetry | None = None
    backoff: Backoff = DEFAULT_BACKOFF
    max_age: float | timedelta | None = MAX_AGE
    policies: Mapping[type[BaseException], Policy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("error_classifier", "on_dlq", "on_retry"):
            if getattr(type(self), name) is not None and vars(self).get(name) is None:
                vars(self).pop(name, None)  # a subclass has it as a method, and the default would hide that
        check_max_attempts(self.max_attempts)
        check_backoff(self.backoff, "backoff")
        if self.max_age is not None:
            seconds(self.max_age, "max_age")
        check_callable(self.error_classifier, "error_classifier (classify= of a consumer)")
        if self.error_classifier is not None and is_coroutine_function(self.error_classifier):
            name = name_of(self.error_classifier)
            raise ConfigError(f"error_classifier {name} is async, but its answer is never awaited. Use a plain function.")
        check_callable(self.on_dlq, "on_dlq")
        check_callable(self.on_retry, "on_retry")
        if not isinstance(self.policies, Mapping):
            raise ConfigError(f"policies must map exception classes to Policy(…), got {self.policies!r}. Pass a dict.")
        for kind, policy in self.policies.items():
            _check_policy(kind, policy)

    @property
    def limits(self) -> Limits:
        age = None if self.max_age is None else bounded(seconds(self.max_age, "max_age"))
        by_policy = max((policy.max_attempts or 0 for policy in self.policies.values()), default=0)
        return Limits(self.max_attempts, age, self.backoff, by_policy)

    def classify_error(self, exc: BaseException) -> ErrorClassification:
        """Which kind of failure this exception is. A subclass that overrides this is asked, in the worker, before the limits are.

        It may ask `super().classify_error(exc)`, which goes by policies, `error_classifier` and the built-in rules.
        """
        return self._ruled(exc).classification

    def failure(self, exc: BaseException, metadata: MessageMetadata) -> Failure:
        """The exception as plain data, with everything that user code has to say about it already asked. Never raises."""
        facts = self._facts(exc)
        _, text, traceback = describe(exc)
        refused, note = self._refusal(metadata, exc)
        dependency = dependency_of(exc) if facts.classification in _ABOUT_DEPENDENCIES else NO_DEPENDENCY
        return msgspec.structs.replace(
            facts,
            rule=facts.rule + note,
            text=text,
            traceback=traceback,
            refused=refused,
            dependency=dependency.name,
            is_dependency_named=dependency.is_named,
        )

    def judge(self, message: Message, metadata: MessageMetadata, failure: Failure, now: datetime) -> Ruling:
        """The ruling on one failure. Pure: it depends on its arguments and nothing else."""
        return judge(self.limits, message.id, metadata, failure, now)

    def should_retry(self, metadata: MessageMetadata, exc: BaseException) -> bool:
        """Whether this failure leads to another attempt: a view of `judge`. A subclass may say no more often."""
        ruling = judge(self.limits, metadata.message_id, metadata, self._facts(exc), datetime.now(UTC))
        return isinstance(ruling.verdict, verdict.Retry)

    def _facts(self, exc: BaseException) -> Failure:
        """What the judgement needs to know about an exception; its texts are left out."""
        classified, policy = self._classified(exc), self._policy(exc)[1]
        return Failure(
            classification=classified.classification,
            rule=classified.rule,
            type_name=type_name(type(exc)),
            retry_after=classified.retry_after,
            charged=classified.charged,
            discard=classified.discard,
            max_attempts=policy.max_attempts,
            backoff=policy.backoff,
            blames_process=blames_process(exc),
        )

    def _classified(self, exc: BaseException) -> Classified:
        """By the subclass's own classify_error, if there is one; but what the handler said itself (steering) goes before it."""
        ruled = self._ruled(exc)
        if type(self).classify_error is PoisonPillHandler.classify_error or issubclass(type(exc), Steering):
            return ruled
        return _asked(self.classify_error, exc, ruled, f"{type(self).__name__}.classify_error")

    def _ruled(self, exc: BaseException) -> Classified:
        """Steering is the handler's own word and goes before everything; then policies, the user's classifier, our rules."""
        built_in = classify(exc)
        if issubclass(type(exc), Steering):  # isinstance would ask the exception's own __class__
            return built_in
        name, policy = self._policy(exc)
        if policy.classification is not None:
            return _reclassified(policy.classification, f"policy for {name}", built_in)
        return built_in if self.error_classifier is None else _asked(self.error_classifier, exc, built_in, "error_classifier")

    def _policy(self, exc: BaseException) -> tuple[str, Policy]:
        """The policy of the nearest class, of HTTPError before that of OSError, with the name of that class."""
        for kind in type(exc).__mro__:
            if kind in self.policies:
                return type_name(kind), self.policies[kind]
        return "", NO_POLICY

    def _refusal(self, metadata: MessageMetadata, exc: BaseException) -> tuple[str | None, str]:
        """A subclass's own should_retry can only retry less, so it is asked only where it was overridden."""
        if type(self).should_retry is PoisonPillHandler.should_retry:
            return None, ""
        name = f"{type(self).__name__}.should_retry"
        try:
            return (None if self.should_retry(metadata, exc) else f"{name} said no"), ""
        except BaseException as broken:  # user code, as above
            return None, f"; {name} was not heeded, since it raised {type(broken).__name__}"


def judge(limits: Limits, message_id: str, metadata: MessageMetadata, failure: Failure, now: datetime) -> Ruling:
    """(limits, attempt, failure) → verdict and the rule that made it."""
    kind = failure.classification

    def dead(name: str, why: str) -> Ruling:
        return Ruling(verdict.DeadLetter(f"{kind}: {why} ({failure.rule})"), kind, f"{name}: {why}")

    if failure.discard:
        return Ruling(verdict.Discard(failure.text), kind, f"discard: {failure.rule}")
    if kind in _NEVER_RETRIED:
        return Ruling(verdict.DeadLetter(f"{kind}: {_NEVER_RETRIED[kind]} ({failure.rule})"), kind, f"{kind}: {failure.rule}")
    if failure.refused:
        return dead("should-retry", failure.refused)
    if failure.charged:
        limit, origin = _strictest(limits.max_attempts, metadata.max_attempts, failure.max_attempts)
        if limit is not None and metadata.attempt >= limit:
            return dead("max-attempts", f"attempt {metadata.attempt} of {limit} failed, the limit set by {origin}")
    age, asked = _age(metadata, now), None if failure.retry_after is None else bounded(failure.retry_after)
    if too_late := _past_max_age(limits.max_age, age, asked):
        return dead("max-age", too_late)
    backoff, spread = failure.backoff or limits.backoff, _spread(message_id, metadata.attempt, now)
    if failure.charged:
        wait, rule = charged_wait(backoff, metadata.attempt, spread, asked)
    else:
        wait, rule = uncharged_wait(backoff, metadata.attempt, age, spread, asked)
    return Ruling(verdict.Retry(wait, failure.charged), kind, f"{rule}: {failure.rule}")


def _strictest(own: int | None, metadata: int | None, policy: int | None) -> tuple[int | None, str]:
    """A policy replaces the consumer's limit; the message's metadata can only narrow what then holds."""
    limit, origin = (policy, "the policy for this exception") if policy is not None else (own, "the consumer")
    if metadata is not None and (limit is None or metadata < limit):
        return metadata, "the message's metadata"
    return limit, origin


def _age(metadata: MessageMetadata, now: datetime) -> timedelta:
    first = metadata.first_failure_time
    return timedelta() if first is None else _utc(now) - _utc(first)


def _utc(moment: datetime) -> datetime:
    """A time without a zone is read as UTC: the zone of this machine is not among the arguments."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _past_max_age(max_age: timedelta | None, age: timedelta, asked: timedelta | None) -> str:
    """Why there is no time left for another start; empty if there is."""
    if max_age is None:
        return ""
    if age >= max_age:
        return f"it has been failing for {age}, the cap is {max_age}"
    left = max_age - max(age, timedelta())
    if asked is not None and asked > left:
        return f"it asks to wait {_whole(asked)}, and of max_age ({max_age}) {_whole(left)} are left"
    return ""


def _whole(time: timedelta) -> timedelta:
    """Rounded to what a person reads."""
    return timedelta(seconds=int(time.total_seconds()))


def _spread(message_id: str, attempt: int, now: datetime) -> float:
    """A number from 0 up to 1 that differs from message to message and from attempt to attempt."""
    seed = f"{message_id}|{attempt}|{_utc(now).timestamp()}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(seed, digest_size=6).digest()) / 2**48


def _asked(classifier: ErrorClassifier, exc: BaseException, otherwise: Classified, name: str) -> Classified:
    """What the user's own code says it is. None, or the same as without it, leaves everything as it was."""
    try:
        answer = classifier(exc)
        asked = None if answer is None else ErrorClassification(answer)
    except BaseException as broken:  # user code: its fault must not cost the message
        note = f"; {name} was not heeded ({type(broken).__name__}: {text_of(broken)})"
        return replace(otherwise, rule=cap(otherwise.rule + note, TEXT_LIMIT))
    return otherwise if asked in (None, otherwise.classification) else _reclassified(asked, f"{name} said {asked}", otherwise)


def _reclassified(classification: ErrorClassification, rule: str, built_in: Classified) -> Classified:
    """What the user says it is. A Retry-After that the server sent still holds where that means "slow down"."""
    new = Classified.of(classification, rule)
    return replace(new, retry_after=built_in.retry_after) if classification is ErrorClassification.THROTTLED else new


def check_max_attempts(value: object, name: str = "max_attempts") -> None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return
    raise ConfigError(f"{name} must be 1 or more, got {value!r}. To run each message once use 1; for no limit use None.")


def check_backoff(value: object, name: str) -> None:
    if not isinstance(value, Backoff):
        raise ConfigError(f"{name} must be a Backoff, got {value!r}. Make one, for example Backoff.exponential(base=1, max=60).")


def check_callable(value: object, name: str) -> None:
    if value is not None and not callable(value):
        raise ConfigError(f"{name} must be a function, got {value!r}. Pass the function itself, or leave it out.")


def _check_policy(kind: object, policy: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)) or not isinstance(policy, Policy):
        raise ConfigError(f"policies must map exception classes to Policy(…), got {kind!r}: {policy!r}. Import the class itself.")
    check_max_attempts(policy.max_attempts, f"Policy for {kind.__name__}: max_attempts")
    if policy.classification is not None and policy.classification not in list(ErrorClassification):
        known = ", ".join(ErrorClassification)
        raise ConfigError(f"Policy for {kind.__name__}: no such classification, {policy.classification!r}. There are {known}.")
    if policy.backoff is not None:
        check_backoff(policy.backoff, f"Policy for {kind.__name__}: backoff")
