"""What do tests of traces share? The spans that this process has made, and those that an app has written into a file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from unpoison.tracing import spans as tracing


@dataclass(frozen=True)
class Span:
    """A span as tests ask for it."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str | None
    status: str
    said: str | None
    attributes: dict[str, Any]
    links: list[str]
    events: list[dict[str, Any]] = field(default_factory=list)
    nanoseconds: int = 0

    @property
    def verdict(self) -> str | None:
        return self.attributes.get("unpoison.verdict")


class Spans:
    """Spans by what they are about."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.all = spans

    def of(self, message_id: str, name: str | None = None) -> list[Span]:
        """Those of a message, in the order they ended."""
        return [
            each for each in self.all if each.attributes.get("messaging.message.id") == message_id and name in (None, each.name)
        ]

    def named(self, name: str) -> list[Span]:
        return [each for each in self.all if each.name == name]

    def one(self, name: str) -> Span:
        (found,) = self.named(name)
        return found

    def below(self, span: Span) -> list[Span]:
        return [each for each in self.all if each.parent == span.id]


def _span(told: dict[str, Any]) -> Span:
    """From what the SDK writes as JSON."""
    return Span(
        told["name"],
        told["kind"].removeprefix("SpanKind."),
        told["context"]["trace_id"],
        told["context"]["span_id"],
        told["parent_id"],
        told["status"]["status_code"],
        told["status"].get("description"),
        told["attributes"],
        [link["context"]["span_id"] for link in told["links"]],
        told["events"],
        told.get("nanoseconds", 0),
    )


def written(file: Path) -> Spans:
    """Those that processes have written into this file, one JSON object a line."""
    return Spans([_span(json.loads(line)) for line in file.read_text().splitlines()])


class Recorded:
    """Those of this process."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    @property
    def spans(self) -> Spans:
        return Spans([_span(_told(span)) for span in self.exporter.get_finished_spans()])


def _told(span: ReadableSpan) -> dict[str, Any]:
    return {**json.loads(span.to_json()), "nanoseconds": (span.end_time or 0) - (span.start_time or 0)}


@contextmanager
def recording(provider: TracerProvider | None = None) -> Iterator[Recorded]:
    """While it lasts, this process has an SDK set up. The API allows that once in a process, and tests are many."""
    recorded, provider = Recorded(), provider or TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(recorded.exporter))
    trace.set_tracer_provider(provider)
    tracing._failing.clear()
    try:
        yield recorded
    finally:
        trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE = None, Once()
        provider.shutdown()
