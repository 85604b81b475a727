"""The app whose every message fails, as a module that worker processes can import."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from unpoison import App, Backoff

app = App(os.environ.get("BENCH_URL", "sqlite:///unused.db"))
LEDGER = Path(os.environ.get("BENCH_LEDGER", os.devnull))
FAILS = {"max_attempts": 2, "backoff": Backoff.fixed(0.0), "breaker": None, "budget": None, "admission": None}
"""Every message is to be run to its last attempt at full speed, which flow control would prevent."""


def note(word: str) -> None:
    """One line with a time that is the same clock in every process."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{word} {time.monotonic_ns()}\n")


@app.on_worker_start
def note_start() -> None:
    note("worker")


@app.consumer("one-attempt", **FAILS)
def refuse(order: dict[str, Any]) -> None:
    """No retry can cure it: one start, then a dead letter."""
    raise ValueError(order["id"])


@app.consumer("two-attempts", **FAILS)
def lose_connection(order: dict[str, Any]) -> None:
    """A retry might: two starts, then a dead letter."""
    raise ConnectionError(order["id"])


@app.consumer("async", **FAILS, concurrency=32)
async def wait_and_fail(order: dict[str, Any]) -> None:
    if order.get("probe"):
        note(f"probe-{order['id']}")
        return
    note("attempt")
    await asyncio.sleep(1.0)
    raise ConnectionError(order["id"])
