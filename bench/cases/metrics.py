"""What do metrics cost? The same messages are drained with and without them, and CPU per message is compared.

With metrics, handlers are timed, depths are read over a connection of their own, and everything is scraped at the end of each
run. Importing the client library is not part of it: that is once for each start.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.cases import orders
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, Spread
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison.app_internals import consumers_of
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp
from unpoison.observing.metrics import Metrics

MESSAGES = 300_000
KINDS = {"process": "isolated worker", "inline": "inline"}


@benchmark("metrics", "SQLite drained with metrics, beside the same without: CPU per message", rounds=7)
def metrics(rounds: Rounds) -> Sequence[Row]:
    rows: list[Row] = []
    for isolation, name in KINDS.items():
        off, on = f"{name}, no metrics", f"{name}, metrics"
        side = partial(partial, child.run, "metrics:drained", Sample, isolation=isolation)
        taken = rounds.interleaved({off: side(with_metrics=False), on: side(with_metrics=True)})
        costs = {label: [sample.cpu_per_message for sample in samples] for label, samples in taken.items()}
        ratios = [mine / theirs for mine, theirs in zip(costs[on], costs[off], strict=True)]
        rows += [
            Row(off, Spread.of(costs[off]), "µs of CPU per message"),
            Row(on, Spread.of(costs[on]), "µs of CPU per message", Spread.of(ratios), goal=Goal("ratio", "≤", 1.02)),
        ]
    return rows


def drained(folder: Path, isolation: str, with_metrics: bool) -> Sample:
    os.environ["BENCH_URL"] = f"sqlite:///{folder}/unpoison.db"
    from bench.cases.isolated_app import app  # noqa: PLC0415 - reads its settings when imported

    for first in range(0, MESSAGES, 10_000):
        app.publish_many("orders", map(orders.order, range(first, first + 10_000)))
    app.close()
    options = replace(consumers_of(app)["orders"].options, isolation=isolation)
    reference = "bench.cases.isolated_app:app" if isolation == "process" else None
    ready = RunnableApp(app.settings, [options], lambda: consumers_of(app), reference)
    observers = [Metrics("bench")] if with_metrics else []
    run = Run([ready], observers=observers)
    with child.Stopwatch() as watch:
        run.serve(until_empty=True)
        texts = [observer.expose()[0].decode() for observer in observers]
    if run.tallies()["orders"].done != MESSAGES:
        raise AssertionError(f"{run.tallies()} instead of {MESSAGES:,} messages")
    for text in texts:
        if f'unpoison_handler_seconds_count{{queue="orders"}} {MESSAGES:.1f}' not in text:
            raise AssertionError(f"not all of {MESSAGES:,} messages were timed:\n{text}")
    return watch.sample(MESSAGES)
