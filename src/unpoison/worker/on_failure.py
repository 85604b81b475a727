"""Calls `on_failure`, in the worker, while the exception of a handler is still the object that was raised.

By then the failure is reported and marked: whatever becomes of the hook, the message gets the verdict of its own failure. While a
hook runs, the marks say since when. So the consumer can end a worker whose hook takes too long, and knows what it died of.
"""

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from unpoison.errors import Discard, RetryLater, Throttled
from unpoison.model.failure import describe
from unpoison.model.message import MessageMetadata, metadata_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from unpoison.decide.policy import OnFailure
    from unpoison.model.failure import Failure
    from unpoison.model.message import Delivery

HOOK_LIMIT = 5.0
"""Seconds that `on_failure` may take."""

ON_PURPOSE = (RetryLater, Throttled, Discard)
"""Raised to steer, not because something went wrong."""

Tell = Callable[[str, str, str, str], None]
"""Told what went wrong with a hook, each kind once: the kind, the problem in words, a traceback, the id of the message."""


class FailureHooks:
    """The hooks for failures of one consumer. `watched` surrounds each call; one hook runs at a time.

    `finish` waits for what an async hook returns where handlers are plain functions, and raises TimeoutError after HOOK_LIMIT.
    """

    def __init__(
        self,
        functions: "Sequence[OnFailure]",
        max_attempts: int | None,
        finish: Callable[[Awaitable[Any]], None],
        tell: Tell,
        watched: "Callable[[], AbstractContextManager[None]]" = nullcontext,
    ) -> None:
        self._functions, self._max_attempts, self._finish = functions, max_attempts, finish
        self._tell, self._watched = tell, watched
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._functions)

    def call(self, delivery: "Delivery", failure: "Failure", error: BaseException) -> None:
        """Where handlers are plain functions."""
        for function in () if isinstance(error, ON_PURPOSE) else self._functions:
            with self._lock, self._guarded(delivery), self._watched():
                result = function(delivery.message, self._metadata(delivery, failure), error)
                if isinstance(result, Awaitable):
                    self._finish(result)

    async def call_async(self, delivery: "Delivery", failure: "Failure", error: BaseException) -> None:
        """Where they are tasks: other messages go on while an async hook waits."""
        for function in () if isinstance(error, ON_PURPOSE) else self._functions:
            with self._guarded(delivery):
                with self._watched():
                    result = function(delivery.message, self._metadata(delivery, failure), error)
                if isinstance(result, Awaitable):
                    await within_limit(result)

    def _metadata(self, delivery: "Delivery", failure: "Failure") -> MessageMetadata:
        known = metadata_of(delivery, failure)
        return MessageMetadata(known.message_id, known.attempt, self._max_attempts, known.first_failure_time, known.last_error)

    @contextmanager
    def _guarded(self, delivery: "Delivery") -> Iterator[None]:
        """Whatever a hook raises ends here."""
        try:
            yield
        except BaseException as error:
            kind, text, traceback = describe(error)
            if kind not in self._told:
                self._told.add(kind)
                self._tell(kind, f"raised {kind}: {text}", traceback, delivery.id)


async def within_limit(result: Awaitable[Any]) -> None:
    """What an async hook returned, awaited for HOOK_LIMIT at most."""
    import asyncio  # noqa: PLC0415 - only for hooks that are async

    limit = asyncio.timeout(HOOK_LIMIT)
    try:
        async with limit:
            await result
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"it took more than {HOOK_LIMIT:g} s") from error
        raise
