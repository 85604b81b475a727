"""The app whose messages partly need a dependency, as a module that worker processes can import."""

import os
import socket
import time
from pathlib import Path
from typing import Any

from unpoison import App, Backoff

app = App(os.environ.get("BENCH_URL", "sqlite:///unused.db"))
LEDGER = os.environ.get("BENCH_LEDGER", os.devnull)
DEPENDENCY = ("127.0.0.1", int(os.environ.get("BENCH_DEPENDENCY", "1")))
WORK = 0.001
"""Seconds that a handler of the partial outage waits for something else, as most handlers do."""
POISON: dict[str, Any] = {"concurrency": 1, "max_attempts": 2, "backoff": Backoff.immediate()}


@app.on_worker_start
def note_start() -> None:
    """One line with a time that is the same clock in every process."""
    with Path(LEDGER).open("a") as ledger:
        ledger.write(f"start {time.monotonic_ns()}\n")


def look(order: dict[str, Any]) -> None:
    """Succeeds but for the poison."""
    if order["total"] < 0:
        raise ConnectionError(order["id"])


app.consumer("with", **POISON)(look)
app.consumer("without", **POISON, breaker=None, budget=None, admission=None)(look)


@app.consumer("partial", concurrency=8, threads=4)
def call(order: dict[str, Any]) -> None:
    """Some orders call the dependency."""
    time.sleep(WORK)
    if order["calls"]:
        socket.create_connection(DEPENDENCY).close()
