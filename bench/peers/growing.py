"""Does a message cost unpoison more, in time or memory, when there are a thousand times as many?

A queue of 1,000 messages is published and drained by one isolated worker, then one of ten times as many, and so on. Memory is
what all its processes have together at their highest; pages that they share count once.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness.child import scratch
from bench.harness.rounds import Rounds
from bench.peers import draining
from bench.peers.brokers import Broker
from bench.peers.results import Cell, Grown
from bench.peers.setups import Setup
from bench.peers.workers import Worker
from servers.processes import Process

SIZES = (1_000, 10_000, 100_000, 1_000_000)
LONGEST = 300.0
"""Seconds. A size that would take longer, publishing included, is left out."""

LOOK = 0.1


def grown(broker: Broker, patience: float, tell: Callable[[str], None], largest: int = SIZES[-1]) -> list[Grown]:
    found: list[Grown] = []
    took = 0.0
    for size in SIZES:
        if size > largest or took * 10 > LONGEST:
            break
        rounds = Rounds(1, lambda text, size=size: tell(f"{broker.name}, {size:,}" + text.removeprefix("round 1 of 1")), patience)
        [(one, took)] = rounds.interleaved({"drain": lambda size=size: _drained(broker, size)})["drain"]
        found.append(one)
        tell(
            f"{broker.name}, {size:,}: {one.seconds / size * 1e6:.1f} µs per message, {one.cpu / size * 1e6:.1f} µs of CPU, "
            f"{one.memory / 1e6:.0f} MB"
        )
    return found


def setup(broker: str) -> Setup:
    return Setup(
        name=f"unpoison-{broker}",
        peer="unpoison",
        label="unpoison",
        broker=broker,
        worker="unpoison run app:app",
        why="One isolated worker, everything else as it is by default.",
        settings={"consumer": {"concurrency": 1}},
    )


def _drained(broker: Broker, size: int) -> tuple[Grown, float]:
    """Also how long it took to publish and drain them."""
    with tempfile.TemporaryDirectory(prefix="unpoison-peers-", dir=scratch()) as name:
        folder = Path(name)
        url = broker.fresh(folder)
        used = setup(broker.name)
        worker = Worker(used, url, folder)
        began = time.monotonic()
        worker.publish("publish", str(size))
        published = time.monotonic() - began
        highest = [0]
        with _memory_watched(worker, highest):
            cell: Cell = draining.watched(worker, broker, folder, size, used)
    return Grown(size, cell.seconds, cell.cpu, highest[0]), published + cell.seconds


@contextmanager
def _memory_watched(worker: Worker, highest: list[int]) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            highest[0] = max(highest[0], sum(map(_resident, worker.processes())))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _resident(process: Process) -> int:
    """Its share of the memory, in bytes."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
