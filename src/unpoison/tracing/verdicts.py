"""Which spans say what was decided about a message that has failed?

`unpoison.retry`, `unpoison.dead_letter` or `unpoison.discard`, below the span of the attempt. An attempt that took its process
down, or was ended for its time limit, left no span: then that is made here as well, from what the consumer knows of its end.

The process that runs hooks makes these spans, or the consumer itself where handlers are not isolated: an SDK is set up there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from unpoison.model import verdict
from unpoison.model.failure import Failure
from unpoison.model.message import Message
from unpoison.port.broker_url import masked_text
from unpoison.reporting.observer import Event
from unpoison.tracing.judged import Judged
from unpoison.tracing.spans import Begun, Tracing, context_in, harmless, mark_failed

if TYPE_CHECKING:
    from opentelemetry.context import Context


def judged(event: Event, letter_id: str | None, at: int) -> Judged:
    """What there is to say about this verdict."""
    name, reason, delay, charged = "dead_letter", event.ruling.rule, None, True
    match event.ruling.verdict:
        case verdict.Retry(after, is_charged):
            name, delay, charged = "retry", after.total_seconds(), is_charged
        case verdict.DeadLetter(why):
            reason = why
        case verdict.Discard(why):
            name, reason = "discard", why
    attempt, replays = event.metadata.attempt, event.delivery.counters.replays
    return Judged(name, reason, at, attempt, replays, str(event.ruling.classification), delay, charged, letter_id)


@contextmanager
def told(tracing: Tracing | None, message: Message, failure: Failure, said: Judged | None) -> Iterator[None]:
    """Make the spans. The one of the verdict is the current one meanwhile, for what a hook does."""
    begun = None if tracing is None or said is None else _begin(tracing, message, failure, said)
    try:
        yield
    finally:
        Tracing.leave(begun)


@harmless
def _begin(tracing: Tracing, message: Message, failure: Failure, said: Judged) -> Begun:
    from opentelemetry.context import attach  # noqa: PLC0415 - only where an SDK is set up
    from opentelemetry.trace import Status, StatusCode, set_span_in_context  # noqa: PLC0415

    context = _above(tracing, message, failure, said)
    span = tracing.step(f"unpoison.{said.verdict}", context, message.id, _attributes(failure, said), said.at)
    if said.verdict == "dead_letter":
        span.set_status(Status(StatusCode.ERROR, masked_text(said.reason)))
    span.end(said.at)
    return span, attach(set_span_in_context(span, context))


def _above(tracing: Tracing, message: Message, failure: Failure, said: Judged) -> "Context":
    """What the verdict belongs to: the attempt that has failed, else the message."""
    from opentelemetry.trace import set_span_in_context  # noqa: PLC0415

    context = context_in({"traceparent": failure.traceparent} if failure.traceparent else message.headers)
    if failure.crash is None or failure.traceparent:
        return context
    began = said.at - round((failure.crash.elapsed or 0.0) * 1e9)
    span = tracing.attempt(context, message.id, said.attempt, said.replays, began)
    mark_failed(span, failure, said.at)
    if failure.crash.signal is not None:
        span.set_attribute("unpoison.crash.signal", failure.crash.signal)
    elif failure.crash.exit_code is not None:
        span.set_attribute("unpoison.crash.exit_code", failure.crash.exit_code)
    span.end(said.at)
    return set_span_in_context(span, context)


def _attributes(failure: Failure, said: Judged) -> dict[str, Any]:
    known: dict[str, Any] = {
        "unpoison.attempt": said.attempt,
        "unpoison.classification": said.classification,
        "unpoison.verdict": said.verdict,
        "unpoison.fingerprint": failure.fingerprint,
        "unpoison.reason": masked_text(said.reason),
    }
    if said.delay is not None:
        known |= {"unpoison.delay": said.delay, "unpoison.charged": said.charged}
    if said.letter_id:
        known["unpoison.letter_id"] = said.letter_id
    return known
