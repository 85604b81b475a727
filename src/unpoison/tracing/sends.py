"""How does a publish become a span, and how does its context come into the headers of the messages?

The configured propagator writes headers of its own beside those of the user. What the user has set stays: a message that brings
a trace of its own keeps it, and the span links to that.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from unpoison.body.payload import checked_headers
from unpoison.model.message import Outgoing
from unpoison.port.broker import Published
from unpoison.port.broker_url import masked_text
from unpoison.tracing.spans import attributes_of, context_in, harmless, links_to, tracer

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

Store = Callable[[Sequence[Outgoing]], Published]

_BAGGAGE = "baggage"


class _Sending(NamedTuple):
    span: "Span"
    token: Any
    messages: Sequence[Outgoing]


def stored(url: str, messages: Sequence[Outgoing], store: Store) -> Published:
    """Have these messages stored, which are of one source: in a span, where an SDK is set up."""
    made = tracer()
    sending = None if made is None else _begin(made, url, messages)
    if sending is None:
        return store(messages)
    try:
        outcome = store(sending.messages)
    except BaseException as error:
        _end(sending, type(error).__qualname__, str(error))
        raise
    _end(sending, *_problem(outcome))
    return outcome


@harmless
def _begin(made: "Tracer", url: str, messages: Sequence[Outgoing]) -> _Sending:
    from opentelemetry.context import attach  # noqa: PLC0415 - only where an SDK is set up
    from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415

    source, links = messages[0].source, links_to(context_in(messages[0].headers))
    attributes = {**attributes_of(url, source), "messaging.operation.name": "send", "messaging.operation.type": "send"}
    attributes.pop("messaging.consumer.group.name", None)
    about = {"messaging.message.id": messages[0].id} if len(messages) == 1 else {"messaging.batch.message_count": len(messages)}
    kind = SpanKind.CLIENT if links else SpanKind.PRODUCER
    span = made.start_span(f"send {source}", None, kind, {**attributes, **about}, links)
    context = set_span_in_context(span)
    return _Sending(span, attach(context), _with_context(messages, context) or messages)


@harmless
def _with_context(messages: Sequence[Outgoing], context: "Context") -> Sequence[Outgoing]:
    from opentelemetry import propagate  # noqa: PLC0415

    injected: dict[str, str] = {}
    propagate.inject(injected, context)
    ours, merged = checked_headers(injected), dict[int, Mapping[str, str]]()
    for message in messages:
        if id(message.headers) not in merged:  # those of one publish share them
            merged[id(message.headers)] = beside(message.headers, ours)
    return [msgspec.structs.replace(message, headers=merged[id(message.headers)]) for message in messages]


def beside(headers: Mapping[str, str], ours: Mapping[str, str]) -> Mapping[str, str]:
    """The user's headers with ours. Parts of two traces would be none, so ours goes in whole or not at all; baggage is apart."""
    taken = {name.lower() for name in headers}
    has_trace = any(name.lower() in taken for name in ours if name != _BAGGAGE)
    fitting = {name: value for name, value in ours.items() if name.lower() not in taken and (name == _BAGGAGE or not has_trace)}
    return {**headers, **fitting} if fitting else headers


def _problem(outcome: Published) -> tuple[str, str]:
    """What kept a message from being stored, and why; both are empty if nothing did."""
    for refused in outcome.refused.values():
        return str(refused.refusal.value), refused.reason
    for why in outcome.unknown.values():
        return "unknown", why
    return "", ""


@harmless
def _end(sending: _Sending, problem: str, text: str) -> None:
    from opentelemetry.context import detach  # noqa: PLC0415
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    detach(sending.token)
    if problem:
        sending.span.set_attribute("error.type", problem)
        sending.span.set_status(Status(StatusCode.ERROR, masked_text(text)))
    sending.span.end()
