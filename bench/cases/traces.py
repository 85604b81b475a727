"""What do traces cost: those who have none, those who have only the API, and those whose messages all have spans?"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.cases import orders
from bench.harness import child
from bench.harness.figures import Row, Sample, Spread
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison.app_internals import consumers_of
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp

MESSAGES = 60_000
SIDES = {
    "without OpenTelemetry": "",
    "the API is imported, no SDK is set up": "api",
    "an SDK that samples nothing": "none",
    "an SDK that samples everything": "all",
}


@benchmark("traces", "SQLite drained by one worker, with and without traces: CPU per message", rounds=3)
def traces(rounds: Rounds) -> Sequence[Row]:
    sides = {label: partial(child.run, "traces:drained", Sample, how=how) for label, how in SIDES.items()}
    taken = rounds.interleaved(sides)
    costs = {label: [sample.cpu_per_message for sample in samples] for label, samples in taken.items()}
    without = next(iter(costs))
    rows = [Row(without, Spread.of(costs[without]), "µs of CPU per message")]
    for label in list(costs)[1:]:
        ratios = [mine / theirs for mine, theirs in zip(costs[label], costs[without], strict=True)]
        rows.append(Row(label, Spread.of(costs[label]), "µs of CPU per message", Spread.of(ratios)))
    return rows


def drained(folder: Path, how: str) -> Sample:
    """All of it, from the first import in the worker to the last settlement. Where there is an SDK, messages bring a context."""
    os.environ |= {"BENCH_URL": f"sqlite:///{folder}/traces.db", "BENCH_TRACES": how}
    from bench.cases import traces_app  # noqa: PLC0415 - it reads the environment

    if how in ("all", "none"):
        traces_app.set_up()
    for first in range(0, MESSAGES, 10_000):
        traces_app.app.publish_many("orders", [orders.order(n) for n in range(first, first + 10_000)])
    traces_app.app.close()
    app = traces_app.app
    options, reference = consumers_of(app)["orders"].options, "bench.cases.traces_app:app"
    run = Run([RunnableApp(app.settings, [options], lambda: consumers_of(app), reference)])
    with child.Stopwatch() as watch:
        run.serve(until_empty=True)
    if run.tallies()["orders"].done != MESSAGES:
        raise AssertionError(f"{MESSAGES:,} messages became {run.tallies()}")
    return watch.sample(MESSAGES)
