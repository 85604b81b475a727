"""What ended an attempt badly, as plain data.

A Failure is made where the exception still exists (in the worker) and travels as text from there: user
exceptions are never pickled, since unpickling one runs user code in the consumer.
"""

import traceback as tracebacks
from collections.abc import Iterator
from types import CodeType, TracebackType
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
MOST_KNOWN, DEEPEST_KNOWN = 200, 100
"""Tracebacks whose text is kept, and the most frames that one of them has."""


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

    `traceparent` names the span of the attempt, where it has one.
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
    traceparent: str = ""


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
        shown = tracebacks.TracebackException(type(error), error, trace, limit=0, compact=True)
        _give_frames(shown, error)
        return cap("".join(shown.format()), TRACEBACK_LIMIT)
    except BaseException:  # formatting reads attributes of the exception and of every cause; frames are safe
        return cap("".join(tracebacks.format_tb(trace, limit=-INNER_FRAMES)), TRACEBACK_LIMIT)


def _give_frames(shown: tracebacks.TracebackException, error: BaseException) -> None:
    """Also to what it was raised from or while handling, and to the exceptions of a group."""
    left: list[tuple[tracebacks.TracebackException | None, BaseException | None]] = [(shown, error)]
    while left:
        one, raised = left.pop()
        if one is None or raised is None:
            continue
        one.stack = _frames(raised.__traceback__)
        left += [(one.__cause__, raised.__cause__), (one.__context__, raised.__context__)]
        if one.exceptions and isinstance(raised, BaseExceptionGroup):
            left += zip(one.exceptions, raised.exceptions, strict=True)


_known_frames: dict[tuple[tuple[int, int], ...], "_Frames"] = {}
"""By the code and the place in it of each frame: in an outage thousands of messages fail in the same places, and the lines of
source are the dear part."""


def _frames(trace: TracebackType | None) -> "_Frames":
    places = [(each.tb_frame.f_code, each.tb_lasti) for each in _walk(trace)]
    key = tuple((id(code), at) for code, at in places)
    found = _known_frames.get(key)
    if found is None:
        found = _Frames(trace, [code for code, _ in places])
        if len(_known_frames) >= MOST_KNOWN:
            _known_frames.clear()
        if len(places) <= DEEPEST_KNOWN:
            _known_frames[key] = found
    return found


def _walk(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


class _Frames(tracebacks.StackSummary):
    """The frames at both ends of a traceback: a deep recursion still shows which handler it began in."""

    def __init__(self, trace: TracebackType | None, codes: list[CodeType]) -> None:
        super().__init__()
        self._codes = codes  # while these exist, no other code has their ids
        left_out = max(0, len(codes) - OUTER_FRAMES - INNER_FRAMES)
        inner = tracebacks.format_tb(trace, limit=-INNER_FRAMES)
        outer = tracebacks.format_tb(trace, limit=OUTER_FRAMES) if left_out else []
        self._lines = [*outer, f"  … {left_out} frames left out …\n", *inner] if left_out else inner

    def __bool__(self) -> bool:
        return bool(self._lines)

    def format(self, **_: Any) -> list[str]:
        return self._lines


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
