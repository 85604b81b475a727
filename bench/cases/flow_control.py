"""What does flow control cost while all is well, and how fast are messages beside others whose dependency is down?

The first drains the same messages with and without it, one poison message in a thousand among them, and compares CPU per
message. In the others three of ten messages call a dependency that refuses connections: how many of the rest are done each
second, beside a run in which it works? Once all messages wait in the source, so that the machine is the limit, and once they come
in at a rate that it can handle.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from bench.cases import orders
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, Spread, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from unpoison.app_internals import consumers_of
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp
from unpoison.reporting.report import Tally

MESSAGES = 300_000
POISON_EVERY = 1_000
CALLING = 3
"""Of ten messages, so many call the dependency."""
AT_ONCE = 1_000
ARRIVING, PUBLISH_EVERY = 1_000, 0.05
"""How many come in each second, and how many seconds lie between two publishes."""
WARM, MEASURED = 3.0, 15.0
"""Seconds before it is counted what is done, and for which that is counted."""
PATIENCE = 300.0
BROKERS = {
    "SQLite": ("", 40_000),
    "PostgreSQL": ("postgresql", 40_000),
    "RabbitMQ": ("rabbitmq", 40_000),
    "Redis": ("redis", 40_000),
    "NATS": ("nats", 40_000),
    "Kafka": ("kafka", 40_000),
    "SQS": ("elasticmq", 10_000),
}
"""By name, the server and how many messages there are."""


@benchmark("flow-control", "SQLite drained with flow control, one poison message in a thousand: CPU per message", rounds=5)
def flow_control(rounds: Rounds) -> Sequence[Row]:
    without, with_all = "breaker, budget and admission are None", "flow control as it is by default"
    taken = rounds.interleaved(
        {
            without: partial(child.run, "flow_control:drained", Sample, source="without"),
            with_all: partial(child.run, "flow_control:drained", Sample, source="with"),
        }
    )
    costs = {label: [sample.cpu_per_message for sample in samples] for label, samples in taken.items()}
    ratios = [mine / theirs for mine, theirs in zip(costs[with_all], costs[without], strict=True)]
    return [
        Row(without, Spread.of(costs[without]), "µs of CPU per message"),
        Row(with_all, Spread.of(costs[with_all]), "µs of CPU per message", Spread.of(ratios), goal=Goal("ratio", "≤", 1.02)),
    ]


@benchmark(
    "partial-outage", "Three of ten messages need what refuses connections: the others, beside a run in which it works", rounds=3
)
def partial_outage(rounds: Rounds) -> Sequence[Row]:
    rows: list[Row] = []
    for name, (server, count) in _chosen().items():
        with _url_of(server) as fresh:
            works, down = f"{name}: it works", f"{name}: it refuses connections"
            sides = {works: partial(_side, fresh, count, works=True), down: partial(_side, fresh, count, works=False)}
            rows += compared(rounds.interleaved(sides), works, {down: Goal("ratio", "≥", 0.9)})
    return rows


@benchmark(
    "partial-outage-arriving",
    "A thousand messages come in each second, and three of ten need what refuses connections: the others",
    rounds=3,
)
def partial_outage_arriving(rounds: Rounds) -> Sequence[Row]:
    rows: list[Row] = []
    for name, (server, _) in _chosen().items():
        with _url_of(server) as fresh:
            works, down = f"{name}: it works", f"{name}: it refuses connections"
            sides = {
                works: lambda fresh=fresh: child.run("flow_control:arriving", Sample, url=fresh(), works=True),
                down: lambda fresh=fresh: child.run("flow_control:arriving", Sample, url=fresh(), works=False),
            }
            rows += compared(rounds.interleaved(sides), works, {down: Goal("ratio", "≥", 0.9)})
    return rows


def _chosen() -> dict[str, tuple[str, int]]:
    asked = os.environ.get("BENCH_BROKERS", "")
    return {name: each for name, each in BROKERS.items() if not asked or name.lower() in asked.split(",")}


def _side(fresh: Callable[[], str], count: int, *, works: bool) -> Sample:
    return child.run("flow_control:others", Sample, url=fresh(), count=count, works=works)


@contextmanager
def _url_of(server: str) -> Iterator[Callable[[], str]]:
    if not server:
        yield lambda: ""
        return
    with served(server) as running:
        yield running.fresh


def drained(folder: Path, source: str) -> Sample:
    """All of it, from the first import in the worker to the last settlement."""
    app = _app(folder, "")
    for first in range(0, MESSAGES, 10_000):
        numbers = range(first, first + 10_000)
        app.publish_many(source, [{**orders.order(n), "total": -1 if n % POISON_EVERY == 0 else 1} for n in numbers])
    app.close()
    run = _run(app, source)
    with child.Stopwatch() as watch:
        run.serve(until_empty=True)
    tally, poison = run.tallies()[source], MESSAGES // POISON_EVERY
    if (tally.done, tally.dead, tally.retried) != (MESSAGES - poison, poison, poison):
        raise AssertionError(f"{MESSAGES:,} messages with {poison} poison ones became {tally}")
    return watch.sample(MESSAGES)


def others(folder: Path, url: str, count: int, works: bool) -> Sample:
    """Those that do not call it, from the worker's start until the last of them is done; they stand all along the queue."""
    with _dependency(works=works):
        return _others(folder, url, count, works=works)


@contextmanager
def _dependency(*, works: bool) -> Iterator[None]:
    """Named to the app by its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        os.environ["BENCH_DEPENDENCY"] = str(listening.getsockname()[1])
        if works:
            threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        else:
            listening.close()
        yield


def arriving(folder: Path, url: str, works: bool) -> Sample:
    """Those that do not call it, while messages come in."""
    with _dependency(works=works):
        app, over = _app(folder, url), threading.Event()
        run = _run(app, "partial")
        threads = [threading.Thread(target=run.serve), threading.Thread(target=_publish, args=(app, over))]
        for thread in threads:
            thread.start()
        time.sleep(WARM)
        before, share = _done(run), (1 - CALLING / 10) if works else 1
        with child.Stopwatch() as watch:
            time.sleep(MEASURED)
            done = _done(run) - before
        over.set()
        run.stop(0)
        for thread in threads:
            thread.join()
        return watch.sample(round(done * share))


def _publish(app: Any, over: threading.Event) -> None:
    """In even steps, however long each of them takes."""
    published, began = 0, time.monotonic()
    while not over.wait(PUBLISH_EVERY):
        due = int((time.monotonic() - began) * ARRIVING)
        app.publish_many("partial", [{"id": n, "calls": n % 10 < CALLING} for n in range(published, due)])
        published = due


def _done(run: Run) -> int:
    return run.tallies().get("partial", Tally()).done


def _accept(listening: socket.socket) -> None:
    with suppress(OSError):  # it is closed when nobody calls any more
        while True:
            listening.accept()[0].close()


def _others(folder: Path, url: str, count: int, *, works: bool) -> Sample:
    app, other = _app(folder, url), count - count * CALLING // 10
    for first in range(0, count, AT_ONCE):
        app.publish_many("partial", [{"id": n, "calls": n % 10 < CALLING} for n in range(first, first + AT_ONCE)])
    app.close()
    run, expected, ends = _run(app, "partial"), count if works else other, time.monotonic() + PATIENCE
    serving = threading.Thread(target=run.serve)
    with child.Stopwatch() as watch:
        serving.start()
        while run.tallies().get("partial", Tally()).done < expected:
            if time.monotonic() > ends:
                raise AssertionError(f"{run.tallies()} after {PATIENCE:g} s instead of {expected:,} done")
            time.sleep(0.005)
        ended = time.monotonic_ns()
    run.stop(0)
    serving.join()
    if run.tallies()["partial"].dead:
        raise AssertionError(f"{run.tallies()}: nothing was to be given up")
    began = min(int(line.split()[1]) for line in (folder / "ledger").read_text().splitlines())
    return Sample(other, (ended - began) / 1e9, watch.cpu, watch.server_cpu)


def _app(folder: Path, url: str) -> Any:
    logging.disable(logging.CRITICAL)
    os.environ["BENCH_URL"] = url or f"sqlite:///{folder}/unpoison.db"
    os.environ["BENCH_LEDGER"] = str(folder / "ledger")
    from bench.cases.flow_control_app import app  # noqa: PLC0415 - reads its settings when imported

    return app


def _run(app: Any, source: str) -> Run:
    reference = "bench.cases.flow_control_app:app"
    return Run([RunnableApp(app.settings, [consumers_of(app)[source].options], lambda: consumers_of(app), reference)])
