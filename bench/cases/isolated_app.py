"""The app that the isolation benchmarks run, as a module that worker processes can import."""

import ctypes
import os
import time
from itertools import repeat
from pathlib import Path
from typing import Any

from bezoar import App

app = App(os.environ.get("BENCH_URL", "sqlite:///unused.db"))
LEDGER = os.environ.get("BENCH_LEDGER", "")
ROUNDS = int(os.environ.get("BENCH_BURN", "0"))


@app.on_worker_start
def note_start() -> None:
    if LEDGER:
        note("start")


def note(word: str) -> None:
    """One line with a time that is the same clock in every process."""
    with Path(LEDGER).open("a") as ledger:
        ledger.write(f"{word} {time.monotonic_ns()}\n")


@app.consumer("orders", concurrency=1)
def handle(order: dict[str, Any]) -> None:
    """Looks one value up, and works for as long as it was told to."""
    order["total"]
    for _ in repeat(None, ROUNDS):  # every turn costs the same, unlike those of a range
        pass


@app.consumer("deaths", concurrency=1, max_attempts=1)
def die(order: dict[str, Any]) -> None:
    """Every other message kills its worker; the one behind it says when it was started."""
    if order["id"] % 2 == 0:
        note("died")
        ctypes.string_at(0)
    else:
        note("next")
