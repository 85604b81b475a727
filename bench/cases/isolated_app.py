"""The app that the isolation benchmarks run, as a module that worker processes can import."""

import ctypes
import os
import time
import zlib
from collections import deque
from itertools import repeat
from pathlib import Path
from typing import Any

from unpoison import App

app = App(os.environ.get("BENCH_URL", "sqlite:///unused.db"))
LEDGER = os.environ.get("BENCH_LEDGER", "")
TURNS = int(os.environ.get("BENCH_TURNS", "0"))
BLOCK = bytes(512)
"""What the handler adds up, so many times. Turns in C over a little memory: a loop in Python of the same length ran up to 1.7
times slower in one process than in another, for no reason but where its objects happened to lie, and one pass over more memory
depended on whose caches it was in."""


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
    deque(map(zlib.crc32, repeat(BLOCK, TURNS)), 0)


@app.consumer("deaths", concurrency=1, max_attempts=1, admission=None)
def die(order: dict[str, Any]) -> None:
    """Every other message kills its worker; the one behind it says when it was started."""
    if order["id"] % 2 == 0:
        note("died")
        ctypes.string_at(0)
    else:
        note("next")
