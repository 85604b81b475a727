"""How is a handler called so that nothing it does can escape?"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from unpoison.errors import UnfinishedHandler
from unpoison.failure import ErrorClassification, Failure, describe, fingerprint
from unpoison.guard import Decode
from unpoison.handler import MessageMetadata, PoisonPillHandler
from unpoison.json_text import Unfit
from unpoison.message import Delivery
from unpoison.signature import name_of


@dataclass(frozen=True, slots=True)
class Call:
    """The user's function with everything that is needed to call it with a raw body."""

    function: Callable[..., Any]
    decode: Decode
    wants_delivery: bool
    handler: PoisonPillHandler
    timeout: float | None = None

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
            problem = f"{kind}, and nobody has looped over it"
            remedy = "Loop over it in the handler"
        elif isinstance(result, Awaitable):
            problem = f"an awaitable of type {type(result).__name__}, and nobody has awaited it"
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
        if isinstance(error, Unfit):
            return unfit(error)
        error.__traceback__ = None if isinstance(error, UnfinishedHandler) else without_our_frames(error.__traceback__)
        try:
            return self.handler.failure(error, metadata_of(delivery))
        except BaseException as broken:  # a classifier or should_retry of the user's raised
            name, text, traceback = describe(error)
            return Failure(
                classification=ErrorClassification.UNKNOWN,
                rule=f"unknown: the classifier itself raised {type(broken).__name__}, so it was not asked",
                type_name=name,
                text=text,
                traceback=traceback,
                fingerprint=fingerprint(name, error.__traceback__),
            )


def unfit(error: Unfit) -> Failure:
    """A body that never reached the handler."""
    return Failure(
        classification=ErrorClassification.INVALID,
        rule=error.rule,
        type_name="unpoison.Unfit",
        text=error.text,
        fingerprint=fingerprint("invalid", places=(error.rule,)),
        charged=False,
        started=False,
    )


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first line of the user's own code on: how unpoison called it explains nothing."""
    first = trace
    while first is not None and first.tb_frame.f_globals.get("__name__", "").startswith("unpoison."):
        first = first.tb_next
    return first or trace


def metadata_of(delivery: Delivery, failure: Failure | None = None) -> MessageMetadata:
    """What a policy may know about the attempt that has just failed."""
    first, started = delivery.counters.first_failed_at, failure is None or failure.started
    return MessageMetadata(
        message_id=delivery.id,
        attempt=delivery.attempt if started else max(1, delivery.counters.charged),
        first_failure_time=None if first is None else datetime.fromtimestamp(first, UTC),
        last_error=None if failure is None else f"{failure.type_name}: {failure.text}",
    )
