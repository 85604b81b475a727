"""What ended an attempt badly, as plain data.

A Failure is made where the exception still exists (in the worker) and travels as text from there: user
exceptions are never pickled, since unpickling one runs user code in the consumer.
"""

import traceback as tracebacks
from itertools import islice
from types import TracebackType
from typing import Any

import msgspec

from unpoison.model.backoff import Backoff
from unpoison.model.verdict import ErrorClassification

NAME_LIMIT = 300
TEXT_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000
OUTER_FRAMES, INNER_FRAMES = 10, 20
"""Frames of a traceback that are kept: those of the handler, and those where it went wrong."""
CHAIN_LIMIT = 10


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a worker that died: the crash dossier of a dead letter."""

    signal: str | None = None
    exit_code: int | None = None
    elapsed: float | None = None
    peak_rss: int | None = None
    stack: str = ""
    log: str = ""
    worker_age: float | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt ended badly: facts only, already classified.

    `rule` names what classified it. `retry_after` is what the failing side asked for, in seconds.
    `charged` is False where the start does not count as an attempt, `started` where the handler never ran.
    `refused` holds the reason when user code said that there must be no retry. `max_attempts` and `backoff`
    come from a per-exception policy and go before the consumer's own.

    `blames_process` marks evidence against the worker's process (a crash, a time limit that ended the worker, memory or
    descriptors used up): in a worker that others used it convicts no message. `worker_damage` says what a check of the worker
    found changed right after this failure, which another message may then have caused.

    `fingerprint` is equal for failures alike (`model.fingerprint`); it is made where it is needed first.

    `dependency` is what it failed on, as far as is known; `is_dependency_named` if by a name or an address and not by a guess.
    """

    classification: ErrorClassification
    rule: str
    type_name: str
    text: str = ""
    traceback: str = ""
    fingerprint: str = ""
    retry_after: float | None = None
    charged: bool = True
    discard: bool = False
    started: bool = True
    refused: str | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    crash: Crash | None = None
    blames_process: bool = False
    worker_damage: str = ""
    dependency: str = ""
    is_dependency_named: bool = False


def describe(error: BaseException) -> tuple[str, str, str]:
    """Type name, text and traceback of an exception. Never raises, whatever its __str__ does."""
    return type_name(type(error)), text_of(error), traceback_of(error)


def summary(error: BaseException) -> str:
    """Type and text of an exception in one line, as Python ends a traceback."""
    return f"{type_name(type(error))}: {text_of(error)}"


def type_name(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return cap(name, NAME_LIMIT)


def text_of(error: BaseException) -> str:
    try:
        return cap(str(error), TEXT_LIMIT)
    except BaseException as broken:  # user code may raise anything, even from __str__
        return f"<{type(error).__name__}: its text could not be read, {type(broken).__name__} was raised>"


def traceback_of(error: BaseException) -> str:
    trace = trace_of(error)
    try:
        shown = tracebacks.TracebackException(type(error), error, trace, limit=-INNER_FRAMES, compact=True)
        shown.stack = _Ends(shown.stack, trace)
        return cap("".join(shown.format()), TRACEBACK_LIMIT)
    except BaseException:  # formatting reads attributes of the exception and of every cause; frames are safe
        return cap("".join(tracebacks.format_tb(trace, limit=-INNER_FRAMES)), TRACEBACK_LIMIT)


class _Ends(tracebacks.StackSummary):
    """The frames at both ends of a long traceback: a deep recursion still shows which handler it began in."""

    def __init__(self, inner: tracebacks.StackSummary, trace: TracebackType | None) -> None:
        super().__init__(inner)
        self._left_out = max(0, sum(1 for _ in tracebacks.walk_tb(trace)) - OUTER_FRAMES - INNER_FRAMES)
        frames = islice(tracebacks.walk_tb(trace), OUTER_FRAMES)
        self._outer = tracebacks.StackSummary.extract(frames) if self._left_out else None

    def format(self, **options: Any) -> list[str]:
        inner = super().format(**options)
        if self._outer is None:
            return inner
        return [*self._outer.format(**options), f"  … {self._left_out} frames left out …\n", *inner]


def trace_of(error: BaseException) -> TracebackType | None:
    """Where it was raised, unless its class stands in the way."""
    try:
        return error.__traceback__
    except BaseException:
        return None


def chain_of(error: BaseException) -> list[BaseException]:
    """An exception, and what it was raised from or while handling: clients wrap what the system told them."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and len(chain) < CHAIN_LIMIT and one not in chain:
        chain.append(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return chain


def cap(text: str, limit: int) -> str:
    """Both ends of a long text, since the first line names and the last line explains."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates cannot be stored or sent
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[len(text) - half :]}"
