"""The app whose messages are traced, as a module that worker processes can import."""

import os
from typing import Any

from unpoison import App

app = App(os.environ.get("BENCH_URL", "sqlite:///unused.db"))
HOW = os.environ.get("BENCH_TRACES", "")
if HOW:
    from opentelemetry import trace


def set_up() -> None:
    """An SDK as services have it, with an exporter that sends nothing: what an exporter costs is its own."""
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - only on sides that pay for it
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON  # noqa: PLC0415

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ALWAYS_ON if HOW == "all" else ALWAYS_OFF)
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)


if HOW in ("all", "none"):
    app.on_worker_start(set_up)


@app.consumer("orders", concurrency=1)
def handle(order: dict[str, Any]) -> None:
    order["total"]
