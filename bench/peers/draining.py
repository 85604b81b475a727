"""How fast does a peer's worker drain a full queue?

The queue is filled by the peer itself; then its worker is started. Timed is from the first message that was handled to the last
one: starting up is not what is compared. Two seconds later the worker is killed, and the broker is asked whether it has anything
left. A message that was handled twice, or not at all, makes the run fail.
"""

import mmap
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness.child import scratch
from bench.peers import remains
from bench.peers.brokers import Broker
from bench.peers.results import Cell
from bench.peers.setups import Setup
from bench.peers.workers import Worker, WorkerFailed

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
