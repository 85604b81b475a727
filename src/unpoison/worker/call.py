"""Calls a handler so that nothing it does can escape, and calls hooks that may be async.

`Call` turns whatever a handler raises into a Failure. `Awaiting` runs the coroutine of an async function to its end before
the call returns. All calls of one worker share one event loop, so that what one of them opens (a pool, a session) others can
use and close.
"""

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from unpoison.body.json_text import Unfit
from unpoison.body.signature import name_of
from unpoison.classify.dependency import named_by_handler
from unpoison.errors import RemoteFailure, UnfinishedHandler
from unpoison.model.failure import Failure, describe
from unpoison.model.fingerprint import marked
from unpoison.model.message import Delivery, metadata_of
from unpoison.model.verdict import ErrorClassification

if TYPE_CHECKING:
    import asyncio

    from unpoison.body.guard import Decode
    from unpoison.decide.options import ConsumerOptions
    from unpoison.decide.policy import OnFailure, PoisonPillHandler
    from unpoison.worker import wire


@dataclass(frozen=True, slots=True)
class Call:
    """The user's function with everything that is needed to call it with a raw body."""

    function: Callable[..., Any]
    decode: "Decode"
    wants_delivery: bool
    handler: "PoisonPillHandler"
    source: str
    timeout: float | None = None
    depends_on: str | None = None
    on_failure: "OnFailure | None" = None

    def prepared(self) -> Callable[[Delivery], Any]:
        """The shortest way from a delivery to the call: this is paid for every message."""
        function, decode = self.function, self.decode
        if self.wants_delivery:
            return lambda delivery: function(decode(None if delivery.is_tombstone else delivery.body), delivery)
        return lambda delivery: function(decode(None if delivery.is_tombstone else delivery.body))

    def check_result(self, result: object) -> None:
        """Raise if the handler returned work instead of doing it: its message must not count as done."""
        if result is None:
            return
        if isinstance(result, Generator | AsyncGenerator):
            kind = "an async generator" if isinstance(result, AsyncGenerator) else "a generator"
            problem = f"{kind} that was never iterated"
            remedy = "Loop over it in the handler"
        elif isinstance(result, Awaitable):
            problem = f"an awaitable of type {type(result).__name__} that was never awaited"
            remedy = "Make the handler an async def and await it there"
        else:
            return
        if isinstance(result, Generator | Coroutine):
            with suppress(BaseException):  # what it does when it is closed is user code
                result.close()  # or Python warns at some later time that it was never awaited
        name = name_of(self.function)
        raise UnfinishedHandler(f"Handler {name} returned {problem}: its work is not done. {remedy}, then replay.")

    def failed(self, delivery: Delivery, error: BaseException) -> Failure:
        """What happened, as data. User code that is asked about it may fail as well."""
        return marked(unfit(error) if isinstance(error, Unfit) else self._raised(delivery, error), self.source)

    def timed_out(self, delivery: Delivery) -> Failure:
        failure = Failure(
            classification=ErrorClassification.TIMEOUT,
            rule="timeout",
            type_name="unpoison.Timeout",
            text=f"still running after {self.timeout:g} s",
        )
        return marked(failure, self.source)

    def _raised(self, delivery: Delivery, error: BaseException) -> Failure:
        error.__traceback__ = None if isinstance(error, UnfinishedHandler) else without_our_frames(error.__traceback__)
        try:
            failure = self.handler.failure(error, metadata_of(delivery))
            if self.depends_on is None or not failure.dependency or named_by_handler(error):
                return failure
            return msgspec.structs.replace(failure, dependency=self.depends_on, is_dependency_named=True)
        except BaseException as broken:  # a classifier or should_retry of the user's raised
            name, text, traceback = describe(error)
            return Failure(
                classification=ErrorClassification.UNKNOWN,
                rule=f"unknown: the classifier itself raised {type(broken).__name__}, so it was not asked",
                type_name=name,
                text=text,
                traceback=traceback,
            )


@dataclass(frozen=True, slots=True)
class Registration:
    """One @app.consumer. `options` may be read anywhere; `call` is user code and belongs to workers only."""

    options: "ConsumerOptions"
    call: Call


def unfit(error: Unfit) -> Failure:
    """A body that never reached the handler."""
    return Failure(
        classification=ErrorClassification.INVALID,
        rule=error.rule,
        type_name="unpoison.Unfit",
        text=error.text,
        charged=False,
        started=False,
    )


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first line of the user's own code on: how unpoison called it explains nothing."""
    first = trace
    while first is not None and first.tb_frame.f_globals.get("__name__", "").startswith("unpoison."):
        first = first.tb_next
    return first or trace


CLOSING = 5.0
"""Seconds that hooks get to finish at the end."""


@dataclass(frozen=True, slots=True)
class WorkerHooks:
    """What runs in each worker before its first and after its last message, and after each failure."""

    start: Sequence[Callable[[], Any]] = ()
    stop: Sequence[Callable[[], Any]] = ()
    failure: "Sequence[OnFailure]" = ()


def failure_functions(call: Call, hooks: WorkerHooks) -> "Sequence[OnFailure]":
    """The hook of this consumer, then those of its app."""
    return [*([] if call.on_failure is None else [call.on_failure]), *hooks.failure]


def call_hook(handler: "PoisonPillHandler", hook: "wire.Hook", awaiting: "Awaiting", error: BaseException | None = None) -> None:
    """`on_retry` if there is a delay, else `on_dlq`. `error` is the exception itself, where it still exists."""
    if not hook.is_called:
        return
    if hook.delay is not None and handler.on_retry:
        awaiting.call(handler.on_retry, hook.message, hook.metadata, hook.delay)
    elif hook.delay is None and handler.on_dlq:
        failed = hook.failure
        remote = RemoteFailure(failed.type_name, failed.text, failed.traceback)
        awaiting.call(handler.on_dlq, hook.message, hook.metadata, error or remote)


class Awaiting:
    """An event loop that runs only while a coroutine is awaited. Made when it is first needed: importing asyncio takes 60 ms."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> "asyncio.AbstractEventLoop":
        if self._loop is None:
            import asyncio  # noqa: PLC0415 - see above

            self._loop = asyncio.new_event_loop()
        return self._loop

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call the function, and await what it returns if that can be awaited."""
        result = function(*arguments)
        if not isinstance(result, Awaitable):
            return
        try:
            self.loop().run_until_complete(result)
        finally:
            if isinstance(result, Coroutine):
                result.close()  # the loop may have refused it, being closed: Python would warn that nobody has awaited it

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()


copies: list[int] = []
"""Empty in a worker; in a forked copy its process id. Looked at after every message, so it is a list and not a function."""


def note_copy() -> None:
    """Called in the copy, directly after the fork."""
    copies.append(os.getpid())


def end_copy() -> None:
    """After a handler has returned: a copy goes no further than here."""
    if copies:
        leave(0)


def leave(status: int) -> None:
    """End this process here and now: atexit handlers belong to the template, which made it by forking."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # a handler may have closed or replaced it
            stream.flush()
    os._exit(status)
