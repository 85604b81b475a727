"""What does it cost to run handlers in isolated workers, and how quickly does the next message start when one dies?

Both sides decode the same bodies with the same guard and call the same handler. One calls it in a loop in the same process;
the other hands batches to one worker process, which keeps its marks, and collects how they ended.
"""

import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.cases import orders
from bench.cases.sqlite_drain import MESSAGES as DRAINED
from bench.harness import child, machine
from bench.harness.figures import Goal, Row, Sample, Spread, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison import App
from unpoison.app_internals import consumers_of
from unpoison.body.guard import decoder
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp
from unpoison.model.message import Delivery
from unpoison.workers.interface import Bell

SLICE = 0.03
"""Seconds, about: shorter than most disturbances."""

PAIRS = 20
TRIES = 200
RUNS = 5
CALIBRATED_AT = 50
"""Turns of the handler at which its speed is looked at."""

DEATHS = 60
BALLAST = 500_000_000


@benchmark("isolation", "Handlers in one isolated worker, beside the same handlers called in process")
def isolation(rounds: Rounds) -> Sequence[Row]:
    rows: list[Row] = []
    for name, microseconds, goal in (("3 µs", 3.0, 0.8), ("20 µs", 20.0, 0.93)):
        baseline, isolated = f"in process, {name} handler", f"isolated worker, {name} handler"
        runs = rounds.interleaved({"pairs": partial(child.run, "isolation:pairs", list[Pair], microseconds=microseconds)}, RUNS)
        pairs = [pair for run in runs["pairs"] for pair in run]
        sides = {baseline: [pair.called for pair in pairs], isolated: [pair.isolated for pair in pairs]}
        rows += compared(sides, baseline, {isolated: Goal("ratio", "≥", goal)})
    contrast = {
        "in process": partial(child.run, "isolation:in_process", Sample),
        "concurrent.futures pool of one, call by call, 3 µs handler": partial(child.run, "isolation:pool", Sample),
        "multiprocessing.Process per message, 3 µs handler": partial(child.run, "isolation:process_each", Sample),
    }
    return [*rows, *compared(rounds.interleaved(contrast, 3), "in process", {})[1:]]


@benchmark("recovery", "A worker segfaults: time until the next message of its batch starts, consumer of 500 MB", rounds=5)
def recovery(rounds: Rounds) -> Sequence[Row]:
    single, row = "one death, the spare worker is there", "death upon death, workers are forked on demand"
    taken = rounds.interleaved(
        {
            single: partial(child.run, "isolation:deaths", list[float], with_spare=True),
            row: partial(child.run, "isolation:deaths", list[float], with_spare=False),
        }
    )
    figures = {label: Spread.of([statistics.median(one) for one in all_]) for label, all_ in taken.items()}
    return [Row(single, figures[single], "ms", goal=Goal("figure", "≤", 3)), Row(row, figures[row], "ms")]


@benchmark("isolated-drain", "SQLite drained with isolation and every promise on, one worker, beside a loop on sqlite3")
def isolated_drain(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "sqlite3: lease 100 rows, run, delete them", "unpoison, isolated worker"
    sides = {
        baseline: partial(child.run, "sqlite_drain:raw_lease", Sample),
        ours: partial(child.run, "isolation:drained", Sample),
    }
    return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.8)})


@benchmark("memory", "Memory of the consumer and its template over a million messages, and over 10,000 worker deaths", rounds=1)
def memory(rounds: Rounds) -> Sequence[Row]:
    del rounds  # once: what grows would grow in any run
    rows = []
    for label, side in (("1,000,000 messages", "isolation:million"), ("10,000 worker deaths", "isolation:many_deaths")):
        early, late, template_early, template_late = child.run(side, list[float])
        flat = Goal("figure", "≤", 1.1)
        rows += [
            Row(f"consumer after {label}, beside after a tenth", _one(late / early), "×", goal=flat),
            Row(f"template after {label}, beside after a tenth", _one(template_late / template_early), "×", goal=flat),
        ]
    return rows


def _one(figure: float) -> Spread:
    return Spread(figure, figure, figure)


class Pair(msgspec.Struct):
    """The same messages, called in process and put through a worker directly after (or before)."""

    called: Sample
    isolated: Sample


def pairs(_: Path, microseconds: float) -> list[Pair]:
    """Short slices by turns, in one process: the speed of a shared machine changes from second to second.

    Pairs during which the host gave one of our cores to somebody else are taken last, if there are too few others.
    """
    handle = settle_in(microseconds)["handle"]
    decode, bodies = _decoder(), orders.bodies(round(SLICE / (microseconds * 1e-6)))
    workers, close = _workers("orders")
    deliveries = [Delivery(n, "orders", str(n), body) for n, body in enumerate(bodies)]
    _put_through(workers, deliveries)

    def called() -> Sample:
        with child.Stopwatch() as watch:
            for body in bodies:
                handle(decode(body))
        return watch.sample(len(bodies))

    def isolated() -> Sample:
        with child.Stopwatch() as watch:
            _put_through(workers, deliveries)
        return watch.sample(len(bodies))

    quiet, disturbed = [], []
    for n in range(TRIES):
        first, second = (called, isolated) if n % 2 else (isolated, called)
        stolen = machine.stolen()
        one, other = first(), second()
        pair = Pair(one, other) if n % 2 else Pair(other, one)
        (quiet if machine.stolen() == stolen else disturbed).append(pair)
        if len(quiet) == PAIRS:
            break
    close()
    return (quiet + disturbed)[:PAIRS]


def in_process(_: Path) -> Sample:
    settled, bodies = settle_in(3.0), orders.bodies(10_000)
    with child.Stopwatch() as watch:
        for body in bodies:
            settled["handle"](settled["decode"](body))
    return watch.sample(len(bodies))


def pool(_: Path) -> Sample:
    bodies = orders.bodies(2_000)
    with ProcessPoolExecutor(1, initializer=settle_in, initargs=(3.0,)) as executor:
        executor.submit(_call, bodies[0]).result()
        with child.Stopwatch() as watch:
            for body in bodies:
                executor.submit(_call, body).result()
    return watch.sample(len(bodies))


def process_each(_: Path) -> Sample:
    settle_in(3.0)
    bodies, context = orders.bodies(150), multiprocessing.get_context("fork")
    with child.Stopwatch() as watch:
        for body in bodies:
            process = context.Process(target=_call, args=(body,))
            process.start()
            process.join()
    return watch.sample(len(bodies))


_settled: dict[str, Any] = {}


def settle_in(microseconds: float) -> dict[str, Any]:
    """Make the handler take so long, here and in workers that are started from here."""
    from bench.cases import isolated_app  # noqa: PLC0415 - reads its settings when imported

    isolated_app.TURNS = _calibrated(isolated_app, microseconds)
    os.environ["BENCH_TURNS"] = str(isolated_app.TURNS)
    _settled.update(handle=isolated_app.handle, decode=_decoder())
    return _settled


def _calibrated(app: Any, microseconds: float) -> int:
    """How many turns make the handler alone take so long, by the median of many short looks."""
    order = orders.order(1)

    def took(turns: int) -> float:
        app.TURNS = turns
        began = time.perf_counter()
        for _ in range(500):
            app.handle(order)
        return (time.perf_counter() - began) / 500 * 1e6

    looks = [(took(0), took(CALIBRATED_AT)) for _ in range(101)]
    bare, full = (statistics.median(side) for side in zip(*looks, strict=True))
    return max(0, round((microseconds - bare) / (full - bare) * CALIBRATED_AT))


def _call(body: bytes) -> None:
    _settled["handle"](_settled["decode"](body))


def deaths(folder: Path, *, with_spare: bool) -> list[float]:
    """Milliseconds from the last line of a dying message to the first line of the next one in its batch."""
    os.environ["BENCH_LEDGER"] = str(folder / "ledger")
    ballast = bytearray(BALLAST)
    ballast[::4096] = b"x" * len(ballast[::4096])
    workers, close = _workers("deaths")
    found = []
    for n in range(DEATHS):
        while with_spare and not all(worker.ready for worker in workers._workers):  # noqa: SLF001 - nobody else needs to know
            workers.wait(0.05)
        (folder / "ledger").write_text("")
        pair = [Delivery(k, "deaths", str(k), msgspec.json.encode({"id": k})) for k in (2 * n, 2 * n + 1)]
        _put_through(workers, pair)
        times = dict(line.split() for line in (folder / "ledger").read_text().splitlines())
        found.append((int(times["next"]) - int(times["died"])) / 1e6)
    close()
    return found


def drained(folder: Path) -> Sample:
    return drained_from(f"sqlite:///{folder}/unpoison.db", folder, DRAINED)


def published_to(url: str, batches: int, at_a_time: int) -> Sample:
    """Publish so many batches of orders, after one message that makes the source."""
    app, payloads = App(url), [orders.order(number) for number in range(at_a_time)]
    app.publish("orders", {})
    with child.Stopwatch() as watch:
        for _ in range(batches):
            app.publish_many("orders", payloads)
    app.close()
    return watch.sample(batches * at_a_time)


def drained_from(url: str, folder: Path, count: int, *, since_first: bool = False) -> Sample:
    """Publish so many, then drain them with one isolated worker and every promise on. Timed is the drain.

    `since_first`: from the first batch that is settled to the last, where a loop by hand is timed from its first message on,
    since joining a group takes longer than the whole drain.
    """
    os.environ["BENCH_URL"] = url
    os.environ["BENCH_LEDGER"] = str(folder / "ledger")
    from bench.cases.isolated_app import app  # noqa: PLC0415

    for at in range(0, count, 10_000):
        app.publish_many("orders", map(orders.order, range(at, min(count, at + 10_000))))
    app.close()
    registrations: Callable[[], Any] = lambda: consumers_of(app)  # noqa: E731
    ready = RunnableApp(app.settings, [consumers_of(app)["orders"].options], registrations, "bench.cases.isolated_app:app")
    run = Run([ready])
    settled = Settled(run, count)
    with child.Stopwatch() as watch:
        if since_first:
            settled.start()
        run.serve(until_empty=True)
        ended = time.monotonic_ns()
    if since_first:
        settled.join()
        return Sample(settled.count, settled.seconds, watch.cpu * settled.count / count, watch.server_cpu)
    if run.tallies()["orders"].done != count:
        raise AssertionError(f"{run.tallies()} instead of {count} messages on {url}")
    # From the moment the first worker was there: starting up is not what is compared.
    began = min(int(line.split()[1]) for line in (folder / "ledger").read_text().splitlines() if line.startswith("start"))
    return Sample(count, (ended - began) / 1e9, watch.cpu, watch.server_cpu)


class Settled(threading.Thread):
    """Looks every few milliseconds how many messages are settled."""

    def __init__(self, run: Run, total: int) -> None:
        super().__init__(daemon=True)
        self._run, self._total = run, total
        self.count, self.seconds = 0, 0.0

    def run(self) -> None:
        first = began = 0.0
        while (done := self._done()) < self._total:
            if not first and done:
                first, began = done, time.perf_counter()
            time.sleep(0.002 if not first or done > 0.95 * self._total else 0.02)  # each look costs the consumer a moment
        self.seconds, self.count = time.perf_counter() - began, self._total - int(first)

    def _done(self) -> int:
        tally = self._run.tallies().get("orders")
        return tally.done if tally else 0


def million(_: Path) -> list[float]:
    workers, close = _workers("orders")
    deliveries = [Delivery(n, "orders", str(n), body) for n, body in enumerate(orders.bodies(100_000))]
    sizes = []
    for _ in range(10):
        _put_through(workers, deliveries)
        sizes.append(_sizes(workers))
    close()
    return [*_pick(sizes)]


def many_deaths(_: Path) -> list[float]:
    os.environ["BENCH_LEDGER"] = os.devnull
    workers, close = _workers("deaths")
    body = msgspec.json.encode({"id": 0})
    sizes = []
    for _ in range(10):
        _put_through(workers, [Delivery(n, "deaths", str(n), body) for n in range(1_000)])
        sizes.append(_sizes(workers))
    close()
    return [*_pick(sizes)]


def _pick(sizes: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    return sizes[0][0], sizes[-1][0], sizes[0][1], sizes[-1][1]


def _sizes(workers: Any) -> tuple[float, float]:
    """Resident memory of this process and of the template, in bytes."""
    template = workers._template._process.pid  # noqa: SLF001 - nobody else needs to know it
    return _resident(os.getpid()), _resident(template)


def _resident(pid: int) -> float:
    return float(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class _Nobody:
    """Stands where the broker would be: nothing here needs one."""

    def inherited_fds(self) -> Sequence[int]:
        return ()


def _workers(source: str) -> tuple[Any, Callable[[], None]]:
    app = RunnableApp.from_reference("bench.cases.isolated_app:app", dict)
    options = next(one for one in app.consumers() if one.source == source)
    started: Any = app.start_workers(options, _Nobody(), Bell())  # type: ignore[arg-type]

    def close() -> None:
        started.workers.close()
        app.close()

    return started.workers, close


def _put_through(workers: Any, deliveries: Sequence[Delivery]) -> None:
    """As a consumer does: fill the room there is, collect what ended, sleep when there is neither."""
    at = ended = 0
    while ended < len(deliveries):
        room = workers.room()
        if room and at < len(deliveries):
            workers.start(deliveries[at : at + room])
            at += room
        over = sum(len(batch.deliveries) for batch in workers.ended())
        ended += over
        if not over and (not workers.room() or at >= len(deliveries)):
            workers.wait(1.0)


def _decoder() -> Callable[[bytes], Any]:
    return decoder(dict[str, Any], None, max_body=16 * 1024 * 1024, max_depth=64)
