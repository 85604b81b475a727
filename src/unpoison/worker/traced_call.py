"""Calls a handler in a span of its own, so that spans made in it are its children.

Used only in workers whose process has an OpenTelemetry SDK set up; all others call the handler as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.tracing.spans import Begun, Tracing
from unpoison.worker.call import Call, end_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall(Call):
    """A Call whose attempts have spans. Needs the whole Delivery: the sender's context is in its headers."""

    tracing: Tracing
    is_async: bool
    _failing: dict[int, Begun] = field(default_factory=dict)
    """The spans of attempts that have just raised, by delivery: why they failed is not known before `failed` was asked."""

    def prepared(self) -> Callable[[Delivery], Any]:
        return self._awaited() if self.is_async else self._called()

    def _called(self) -> Callable[[Delivery], None]:
        run, check, tracing = Call.prepared(self), self.check_result, self.tracing

        def traced(delivery: Delivery) -> None:
            begun = tracing.begin(delivery)
            try:
                check(run(delivery))
            except BaseException:
                self._keep(delivery, begun)
                raise
            end_copy()  # a forked copy that went on would send the span again
            tracing.succeeded(begun)

        return traced

    def _awaited(self) -> Callable[[Delivery], Any]:
        run, check, tracing = Call.prepared(self), self.check_result, self.tracing

        async def traced(delivery: Delivery) -> None:
            begun = tracing.begin(delivery)
            try:
                check(await run(delivery))
            except BaseException:
                self._keep(delivery, begun)
                raise
            end_copy()
            tracing.succeeded(begun)

        return traced

    def _keep(self, delivery: Delivery, begun: Begun | None) -> None:
        end_copy()
        self.tracing.leave(begun)
        if begun is not None:
            self._failing[id(delivery)] = begun

    def failed(self, delivery: Delivery, error: BaseException) -> Failure:
        return self._told(delivery, Call.failed(self, delivery, error))

    def timed_out(self, delivery: Delivery) -> Failure:
        return self._told(delivery, Call.timed_out(self, delivery))

    def _told(self, delivery: Delivery, failure: Failure) -> Failure:
        begun = self._failing.pop(id(delivery), None)
        where = None if begun is None else self.tracing.failed(begun, failure)
        return msgspec.structs.replace(failure, traceparent=where) if where else failure


def traced(call: Call, tracing: Tracing | None, *, is_async: bool) -> Call:
    """The call with spans, where there is a tracer for them."""
    if tracing is None:
        return call
    given = {each.name: getattr(call, each.name) for each in fields(call)}
    return TracedCall(**given, tracing=tracing, is_async=is_async)
