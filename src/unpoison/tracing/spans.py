"""Which spans does a message get, and how do they find each other?

A span is made where the user has set up an OpenTelemetry SDK: publishing in any process, attempts in the worker that runs them.
Only the API is used, and it is not even imported where nobody has set up an SDK. Names and attributes follow the semantic
conventions for messaging.

All attempts of a message are in one trace: each has the context in the message's headers as its parent, and links to it. A
message without one gets a trace id that is derived from its source and id, so that every process finds the same.

Nothing in here raises: whatever a propagator, a sampler or an exporter does, it costs spans and no message.
"""

import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import parse_qs

from unpoison.model.events import fields
from unpoison.model.failure import Failure, describe
from unpoison.model.message import Delivery
from unpoison.model.wording import first_line
from unpoison.port.broker_url import masked_text, scheme_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Tracer

log = logging.getLogger("unpoison")

_SYSTEMS = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "sqs": "aws_sqs",
    "rediss": "redis",
    "tls": "nats",
    "postgres": "postgresql",
}
"""What conventions call the brokers; those that are not here are called as their scheme."""

_GROUP = {"redis": "unpoison", "nats": "unpoison", "kafka": ""}
"""Systems with consumer groups, and the group where the URL names none."""

_SET_UP_BY_ENVIRONMENT = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
_failing: set[str] = set()


def harmless(function: Callable[Parameters, Answer]) -> Callable[Parameters, Answer | None]:
    """Have this answer None instead of raising. What keeps it from working is logged once."""

    @wraps(function)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            _note(function.__qualname__, error)
            return None

    return guarded


def _note(where: str, error: Exception) -> None:
    if where not in _failing:
        _failing.add(where)
        text = "OpenTelemetry failed, so spans are missing; messages are not affected. This is logged once. %s: %s"
        log.error(text, *describe(error)[:2], exc_info=error, extra=fields("tracing-failed", where=where))


@harmless
def tracer() -> "Tracer | None":
    """The tracer of this process; None where nobody has set up an SDK."""
    if "opentelemetry.trace" not in sys.modules and not _SET_UP_BY_ENVIRONMENT:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - it is imported already, unless the environment asks for it

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    made = provider.get_tracer("unpoison")
    if isinstance(made, trace.NoOpTracer):
        return None
    if hasattr(made, "id_generator") and not isinstance(made.id_generator, _TraceIds):
        made.id_generator = _TraceIds(made.id_generator)
    return made


class _TraceIds:
    """The SDK's own ids, but for traces that begin with a message without a context."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def generate_trace_id(self) -> int:
        derived: int | None = getattr(_next_trace, "id", None)
        return self._usual.generate_trace_id() if derived is None else derived

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


_next_trace = threading.local()


def trace_id_of(source: str, message_id: str) -> int:
    """The trace of a message that brings none: the same in every process and for every attempt."""
    named = f"{source}\0{message_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(named, digest_size=16, person=b"unpoison-trace").digest()) or 1


@lru_cache(maxsize=256)
def attributes_of(url: str, source: str) -> Mapping[str, str]:
    """What all spans of a source have in common."""
    scheme = scheme_of(url).partition("+")[0]
    system = _SYSTEMS.get(scheme, scheme)
    found = {"messaging.system": system, "messaging.destination.name": source}
    if system in _GROUP:
        found["messaging.consumer.group.name"] = parse_qs(url.partition("?")[2]).get("group", [_GROUP[system]])[-1]
    return found


class _Headers:
    """How propagators read headers. The names of W3C are lower case, and other senders need not know that."""

    @staticmethod
    def get(carrier: Mapping[str, str], key: str) -> list[str] | None:
        found = carrier.get(key)
        if found is None:
            wanted = key.lower()
            found = next((value for name, value in carrier.items() if name.lower() == wanted), None)
        return None if found is None else [found]

    @staticmethod
    def keys(carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


_HEADERS: Any = _Headers()


@lru_cache(maxsize=1)
def _api() -> Any:
    """What each attempt needs of the API, looked up once: an import in a function takes half a microsecond each time."""
    from opentelemetry import context, propagate, trace  # noqa: PLC0415 - here and below: only where an SDK is set up

    return SimpleNamespace(
        Context=context.Context,
        Link=trace.Link,
        attach=context.attach,
        detach=context.detach,
        extract=propagate.extract,
        get_current_span=trace.get_current_span,
        set_span_in_context=trace.set_span_in_context,
    )


@harmless
def _extracted(headers: Mapping[str, str]) -> "Context":
    api = _api()
    found: Context = api.extract(headers, api.Context(), _HEADERS)
    return found


def context_in(headers: Mapping[str, str]) -> "Context":
    """What the sender put into the headers; an empty context if that is nothing, never the ambient one."""
    return (_extracted(headers) if headers else None) or _api().Context()


def links_to(context: "Context") -> "list[Link]":
    """A link to the span in this context, if it has one."""
    creation = _api().get_current_span(context).get_span_context()
    return [_api().Link(creation)] if creation.is_valid else []


Begun = tuple["Span", object]
"""A span that is the current one, and the token that takes it back."""


class Tracing:
    """Makes the spans of one source, in this process."""

    def __init__(self, made: "Tracer", url: str, source: str) -> None:
        from opentelemetry.trace import SpanKind  # noqa: PLC0415

        self._tracer, self._source = made, source
        self._process, self._kind = f"process {source}", SpanKind.CONSUMER
        named = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
        self._common: Mapping[str, Any] = dict(attributes_of(url, source))
        self._of_attempt: Mapping[str, Any] = {**self._common, **named}

    @classmethod
    def found(cls, url: str, source: str) -> "Tracing | None":
        """None where nobody has set up an SDK: asked once, when a worker starts."""
        made = tracer()
        return None if made is None else cls(made, url, source)

    @harmless
    def begin(self, delivery: Delivery) -> Begun:
        """The span of an attempt begins, and is the current one."""
        context, api = context_in(delivery.headers), _api()
        span = self.attempt(context, delivery.id, delivery.attempt, delivery.counters.replays)
        return span, api.attach(api.set_span_in_context(span, context))

    def attempt(self, context: "Context", id_: str, attempt: int, replays: int, start: int | None = None) -> "Span":
        """A span of an attempt, whose parent is in this context. `start` is in nanoseconds since 1970."""
        attributes = {**self._of_attempt, "messaging.message.id": id_, "unpoison.attempt": attempt}
        if replays:
            attributes["unpoison.replays"] = replays
        return self._start(self._process, id_, self._kind, context, attributes, start)

    def step(self, name: str, context: "Context", id_: str, attributes: Mapping[str, Any], at: int) -> "Span":
        """A span of what was decided about a message."""
        from opentelemetry.trace import SpanKind  # noqa: PLC0415

        return self._start(name, id_, SpanKind.INTERNAL, context, {**self._common, "messaging.message.id": id_, **attributes}, at)

    def _start(
        self, name: str, id_: str, kind: "SpanKind", context: "Context", attributes: Mapping[str, Any], start: int | None
    ) -> "Span":
        links = links_to(context)
        if links:
            return self._tracer.start_span(name, context, kind, attributes, links if kind is self._kind else (), start)
        _next_trace.id = trace_id_of(self._source, id_)
        try:
            return self._tracer.start_span(name, context, kind, attributes, (), start)
        finally:
            _next_trace.id = None

    @staticmethod
    @harmless
    def leave(begun: Begun | None) -> None:
        """The handler has ended: its span is not the current one any more, and ends later."""
        if begun is not None:
            _api().detach(begun[1])

    @staticmethod
    @harmless
    def succeeded(begun: Begun | None) -> None:
        Tracing.leave(begun)
        if begun is not None:
            begun[0].end()

    @staticmethod
    @harmless
    def failed(begun: Begun, failure: Failure) -> str:
        """The attempt has failed. Answers where its span is, as `traceparent`: what is decided about it belongs there."""
        span = begun[0]
        mark_failed(span, failure)
        span.end()
        return traceparent_of(span)

    @staticmethod
    @harmless
    def flush() -> None:
        """This process ends: have processors send what they still hold. The API has no word for it, SDKs have."""
        from opentelemetry.trace import get_tracer_provider  # noqa: PLC0415

        if flush := getattr(get_tracer_provider(), "force_flush", None):
            flush()


def traceparent_of(span: "Span") -> str:
    known = span.get_span_context()
    return f"00-{known.trace_id:032x}-{known.span_id:016x}-{known.trace_flags:02x}" if known.is_valid else ""


def mark_failed(span: "Span", failure: Failure, at: int | None = None) -> None:
    """Say on the span of an attempt why it has failed: with the failure's own texts, which are limited, and without passwords.

    A handler that discards its message has done what it should.
    """
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    about = {"unpoison.classification": str(failure.classification), "unpoison.fingerprint": failure.fingerprint}
    span.set_attributes(about)
    if failure.discard:
        span.set_attribute("unpoison.verdict", "discard")
        return
    text = masked_text(failure.text)
    told = {"exception.type": failure.type_name, "exception.message": text}
    if failure.traceback:
        told["exception.stacktrace"] = masked_text(failure.traceback)
    span.set_attribute("error.type", failure.type_name)
    span.add_event("exception", told, at)
    span.set_status(Status(StatusCode.ERROR, first_line(text) or failure.type_name))
