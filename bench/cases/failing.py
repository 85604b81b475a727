"""How fast does a consumer run whose every message fails?

In an outage each message comes to its last attempt. One side raises ValueError, which no retry can cure: one start each. The
other raises ConnectionError with `max_attempts=2`: two starts each, with a retry stored and fetched in between. Counted are
starts of handlers per second. Log lines are turned off on both sides.
"""

import logging
import os
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, Spread, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from unpoison.app_internals import consumers_of
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp

MESSAGES = 20_000
WAITING = 64
PROBES = 40
LAST_ATTEMPTS = 16
"""Messages at their last attempt while others are published: fewer than there are places."""


@benchmark("failing", "Every message fails: two attempts each beside one, in starts of handlers per second", rounds=5)
def failing(rounds: Rounds) -> Sequence[Row]:
    rows = _of_broker(rounds, "SQLite", None)
    for name in ("redis", "rabbitmq"):
        with served(name) as server:
            rows += _of_broker(rounds, {"redis": "Redis", "rabbitmq": "RabbitMQ"}[name], server)
    return rows


@benchmark("failing-async", "Async messages that sleep 1 s and raise, two attempts each, concurrency 32 (SQLite)", rounds=3)
def failing_async(rounds: Rounds) -> Sequence[Row]:
    all_of, starts = (
        f"{WAITING} messages until all are dead letters",
        "a new message: publish → start, others at their last attempt",
    )
    taken = rounds.interleaved(
        {
            all_of: lambda: child.run("failing:waiting", float),
            starts: lambda: child.run("failing:probed", list[float]),
        }
    )
    medians = [statistics.median(one) for one in taken[starts]]
    return [
        Row(all_of, Spread.of(taken[all_of]), "s", goal=Goal("figure", "≤", 6)),
        Row(starts, Spread.of(medians), "ms", goal=Goal("figure", "≤", 100)),
    ]


def _of_broker(rounds: Rounds, name: str, server: Any) -> list[Row]:
    one, two = f"{name}: ValueError, one attempt", f"{name}: ConnectionError, two attempts"
    sides = {
        label: lambda source=source: child.run("failing:drained", Sample, source=source, url=server.fresh() if server else "")
        for label, source in ((one, "one-attempt"), (two, "two-attempts"))
    }
    return compared(rounds.interleaved(sides), one, {two: Goal("ratio", "≥", 0.5)})


def drained(folder: Path, source: str, url: str) -> Sample:
    """Timed from the first worker's start to the last dead letter."""
    app, ledger = _app(folder, url)
    for at in range(0, MESSAGES, 10_000):
        app.publish_many(source, [{"id": number} for number in range(at, at + 10_000)])
    app.close()
    with child.Stopwatch() as watch:
        run = _run(app, source)
        ended = time.monotonic_ns()
    tally = run.tallies()[source]
    if (tally.dead, tally.done) != (MESSAGES, 0):
        raise AssertionError(f"{tally} instead of {MESSAGES} dead letters on {url}")
    began = min(_times(ledger, "worker"))
    return Sample(tally.dead + tally.retried, (ended - began) / 1e9, watch.cpu, watch.server_cpu)


def waiting(folder: Path) -> float:
    """Seconds from the first worker's start until each of them is a dead letter."""
    app, ledger = _app(folder, "")
    app.publish_many("async", [{"id": number} for number in range(WAITING)])
    app.close()
    run = _run(app, "async")
    ended = time.monotonic_ns()
    if run.tallies()["async"].dead != WAITING:
        raise AssertionError(f"{run.tallies()} instead of {WAITING} dead letters")
    return (ended - min(_times(ledger, "worker"))) / 1e9


def probed(folder: Path) -> list[float]:
    """Milliseconds from publishing a message to its start, while others sleep through their last attempt."""
    app, ledger = _app(folder, "")
    app.publish_many("async", [{"id": f"slow-{number}"} for number in range(LAST_ATTEMPTS)])
    published: dict[int, int] = {}

    def publish() -> None:
        while len(_times(ledger, "attempt")) < 2 * LAST_ATTEMPTS:  # until each of them is at its last attempt
            time.sleep(0.002)
        for number in range(PROBES):
            published[number] = time.monotonic_ns()
            app.publish("async", {"id": number, "probe": True})
            time.sleep(0.02)

    publishing = threading.Thread(target=publish)
    publishing.start()
    _run(app, "async")
    publishing.join()
    app.close()
    return [(_times(ledger, f"probe-{number}")[0] - at) / 1e6 for number, at in published.items()]


def _app(folder: Path, url: str) -> tuple[Any, Path]:
    logging.disable(logging.CRITICAL)
    ledger = folder / "ledger"
    os.environ["BENCH_URL"] = url or f"sqlite:///{folder}/unpoison.db"
    os.environ["BENCH_LEDGER"] = str(ledger)
    from bench.cases.failing_app import app  # noqa: PLC0415 - reads its settings when imported

    return app, ledger


def _run(app: Any, source: str) -> Run:
    ready = RunnableApp(
        app.settings, [consumers_of(app)[source].options], lambda: consumers_of(app), "bench.cases.failing_app:app"
    )
    run = Run([ready])
    run.serve(until_empty=True)
    return run


def _times(ledger: Path, word: str) -> list[int]:
    if not ledger.exists():
        return []
    lines = [line.split() for line in ledger.read_text().splitlines()]
    return [int(line[1]) for line in lines if len(line) == 2 and line[0] == word]
