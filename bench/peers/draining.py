"""How fast does a peer's worker drain a full queue?

The queue is filled by the peer itself; then its worker is started. Timed is from the first message that was handled to the last
one: starting up is not what is compared. Two seconds later the worker is killed, and the broker is asked whether it has anything
left. A message that was handled twice, or not at all, makes the run fail.
"""

import mmap
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness.child import scratch
from bench.harness.rounds import Rounds
from bench.peers import remains
from bench.peers.brokers import Broker
from bench.peers.results import Cell, Grown
from bench.peers.setups import Setup
from bench.peers.workers import Worker, WorkerFailed
from servers.processes import Process

LOOK = 0.002
SETTLE = 2.0
STUCK = 60.0
"""Seconds without progress after which a run has failed."""

A_PIECE_OF_EVERY_ORDER = b"A-1001"


def drained(setup: Setup, broker: Broker, messages: int) -> Cell:
    with tempfile.TemporaryDirectory(prefix="unpoison-peers-", dir=scratch()) as name:
        folder = Path(name)
        url = broker.fresh(folder)
        worker = Worker(setup, url, folder)
        worker.publish("publish", str(messages))
        cell = watched(worker, broker, folder, messages, setup)
        entries = remains.waiting(remains.found(broker.server, url), setup.kept)
    left = sum(A_PIECE_OF_EVERY_ORDER in entry for _, entry in entries)
    return Cell(cell.messages, cell.seconds, cell.cpu, cell.server_cpu, left)


def watched(worker: Worker, broker: Broker, folder: Path, messages: int, setup: Setup) -> Cell:
    """Start the worker on a full queue, and kill it when that has been empty for a while."""
    (folder / "seen").write_bytes(bytes(messages))
    with (folder / "seen").open("r+b") as file, mmap.mmap(file.fileno(), 0) as seen:
        try:
            cell = _timed(worker, broker, seen, setup)
            time.sleep(SETTLE)
        finally:
            worker.kill()
        more = sum(count > 1 for count in seen[:])
    if more:
        raise WorkerFailed(f"{setup.name}: {more} of {messages} messages were handled more than once though nothing had failed")
    return cell


def _timed(worker: Worker, broker: Broker, seen: mmap.mmap, setup: Setup) -> Cell:
    """From the first message to the last."""
    messages = len(seen)

    def handled() -> int:
        return messages - seen[:].count(b"\0")

    worker.start()
    _until(worker, setup, handled, 1)
    first, began, cpu, server_cpu = handled(), time.perf_counter(), worker.cpu, broker.cpu
    _until(worker, setup, handled, messages)
    seconds = time.perf_counter() - began
    return Cell(messages - first, seconds, worker.cpu - cpu, broker.cpu - server_cpu)


def _until(worker: Worker, setup: Setup, handled: Callable[[], int], wanted: int) -> None:
    progress, since = 0, time.monotonic()
    while (now := handled()) < wanted:
        if now > progress:
            progress, since = now, time.monotonic()
        if not worker.alive or time.monotonic() > since + STUCK:
            what = "does nothing any more" if worker.alive else "has ended"
            raise WorkerFailed(f"{setup.name}: the worker {what}; {now} messages were handled. It wrote:\n{worker.last_lines()}")
        time.sleep(LOOK)


# Does a message cost unpoison more, in time or memory, when there are a thousand times as many?
#
# A queue of 1,000 messages is published and drained by one isolated worker, then one of ten times as many, and so on. Memory is
# what all its processes have together at their highest; pages that they share count once.


SIZES = (1_000, 10_000, 100_000, 1_000_000)
LONGEST = 300.0
"""Seconds. A size that would take longer, publishing included, is left out."""

LOOK_AT_MEMORY = 0.1


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
            cell: Cell = watched(worker, broker, folder, size, used)
    return Grown(size, cell.seconds, cell.cpu, highest[0]), published + cell.seconds


@contextmanager
def _memory_watched(worker: Worker, highest: list[int]) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_AT_MEMORY):
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
