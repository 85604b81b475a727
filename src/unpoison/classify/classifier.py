"""Classifies an exception: which kind of failure is it?

These are asked in order until one knows: the exceptions that a handler raises to steer; what the server replied
(`server_replies`); the exception that this one wraps; its class (`known_errors`); for a group, what its members agree on; its
`__cause__`. `__context__` is never asked: it is whatever happened to be handled at the time.

`blames_process` answers another question: does the exception speak against the worker process rather than the message? Memory or
descriptors that are used up, or a closed descriptor, may be the work of an earlier message. Such a failure is tried again in a
fresh worker before it counts against the message.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, replace

from unpoison.classify.known_errors import KNOWN_ERRORS, WRAPPERS
from unpoison.classify.server_replies import ANSWERS, read
from unpoison.classify.status_codes import Meaning
from unpoison.errors import Discard, Permanent, RetryLater, Steering, Throttled
from unpoison.model.failure import chain_of, type_name
from unpoison.model.verdict import ErrorClassification

CHAIN_LIMIT = 20


@dataclass(frozen=True, slots=True)
class Classified:
    """A classification with the rule that made it."""

    classification: ErrorClassification
    rule: str
    retry_after: float | None = None
    charged: bool = True
    discard: bool = False

    @classmethod
    def of(cls, classification: ErrorClassification, rule: str) -> "Classified":
        return cls(classification, rule, charged=classification is not ErrorClassification.THROTTLED)


def classify(error: BaseException) -> Classified:
    """The kind of failure, with its rule in words for the person on call. Never raises, whatever the exception does."""
    try:
        return _classify(error, CHAIN_LIMIT)
    except BaseException as broken:  # user code may raise anything, even from an attribute
        rule = f"it could not be looked at, {type(broken).__name__} was raised"
        return Classified(ErrorClassification.UNKNOWN, rule)


def _classify(error: BaseException, depth: int) -> Classified:
    found = _look_at(error, depth)
    if found.classification is not ErrorClassification.UNKNOWN or depth == 0:
        return found
    cause = error.__cause__
    if cause is None or cause is error:
        return found
    deeper = _classify(cause, depth - 1)
    if deeper.classification is ErrorClassification.UNKNOWN:
        return found
    return replace(deeper, rule=f"{deeper.rule}; it is the cause of {type_name(type(error))}")


def _look_at(error: BaseException, depth: int) -> Classified:
    """This exception alone, without its cause."""
    if issubclass(type(error), Steering):
        return _steered(error)
    if issubclass(type(error), BaseExceptionGroup):
        return _agreed(error, depth)
    meaning = _meaning(error, depth)
    if meaning is None:
        return Classified(ErrorClassification.UNKNOWN, f"{type_name(type(error))}: no rule knows it")
    known = Classified.of(meaning.classification, f"{type_name(type(error))}: {meaning.why}")
    return replace(known, retry_after=meaning.retry_after)


def _steered(error: BaseException) -> Classified:
    """What the handler said itself. A subclass may have forgotten its super().__init__, so nothing is taken for granted."""
    kind, rule = type(error), f"the handler raised {type_name(type(error))}"
    if issubclass(kind, Discard):
        return Classified(ErrorClassification.PERMANENT, rule, discard=True)
    if issubclass(kind, Permanent):
        return Classified(ErrorClassification.PERMANENT, rule)
    if issubclass(kind, Throttled):
        return Classified(ErrorClassification.THROTTLED, rule, _seconds(read(error, "retry_after")), charged=False)
    if issubclass(kind, RetryLater):
        return Classified(ErrorClassification.TRANSIENT, rule, _seconds(read(error, "after")), charged=False)
    return Classified(ErrorClassification.UNKNOWN, f"{rule}, which says nothing")


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < float("inf") else None


def _agreed(group: BaseException, depth: int) -> Classified:
    """A group is what all its members are. Where they differ it is unknown, and so retried up to the limit."""
    name = type_name(type(group))
    members = [_classify(member, depth - 1) for member in read(group, "exceptions") or ()] if depth else []
    kinds = sorted({member.classification for member in members})
    if len(kinds) != 1:
        listed = ", ".join(kinds) or "nothing"
        return Classified(ErrorClassification.UNKNOWN, f"{name}: its members do not agree ({listed})")
    waits = [member.retry_after for member in members if member.retry_after is not None]
    return Classified(
        kinds[0],
        f"{name} of {len(members)}, all {kinds[0]}: {members[0].rule}",
        retry_after=max(waits, default=None),
        charged=any(member.charged for member in members),
        discard=all(member.discard for member in members),
    )


def _meaning(error: BaseException, depth: int) -> Meaning | None:
    names = list(_class_names(type(error)))
    for name in names:
        if name in ANSWERS and (meaning := ANSWERS[name](error)):
            return meaning
    for name in names:
        if name in WRAPPERS and depth and (meaning := _wrapped(read(error, WRAPPERS[name]), depth)):
            return meaning
    return next((KNOWN_ERRORS[name] for name in names if name in KNOWN_ERRORS), None)


def _wrapped(inner: object, depth: int) -> Meaning | None:
    if not isinstance(inner, BaseException):
        return None
    meaning = _meaning(inner, depth - 1)
    return meaning and meaning._replace(why=f"around {type_name(type(inner))}: {meaning.why}")


def _class_names(kind: type) -> Iterator[str]:
    """Full names from the class itself to its furthest ancestor, so that the nearest is found first."""
    return (f"{ancestor.__module__}.{ancestor.__qualname__}" for ancestor in kind.__mro__)


_ERRNOS = {errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOTSOCK}

_TEXTS = (
    "can't start new thread",
    "can't allocate lock",
    "cannot schedule new futures after",  # an executor that was shut down, of the handler's own or of its event loop
    "Event loop is closed",
    "Executor shutdown has been called",
)
"""How Python's own RuntimeErrors begin that tell of a used-up or shut-down process."""


def blames_process(error: BaseException) -> bool:
    """Looks at the exception and at what it was raised from. Never raises, whatever the exception does."""
    try:
        return any(_is_fault(one) for one in chain_of(error))
    except BaseException:  # user code may raise anything, even from an attribute
        return False


def _is_fault(error: BaseException) -> bool:
    kind = type(error)
    if issubclass(kind, MemoryError | SystemError):
        return True
    if issubclass(kind, OSError):
        return getattr(error, "errno", None) in _ERRNOS
    return kind is RuntimeError and str(error).startswith(_TEXTS)
