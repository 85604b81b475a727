"""What does a judgement cost, and who pays it? Only messages that fail."""

import logging
import sys
import threading
import timeit
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from bench.cases import orders
from bench.harness import child
from bench.harness.figures import Goal, Row, Spread
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison import App, Backoff, MessageMetadata, PoisonPillHandler
from unpoison.decide import policy as decisions
from unpoison.model.message import Message

CALLS = 5_000
SUCCESSES = 1_000
FAILURES = 10

COUNTED = {
    code: name
    for name, code in {
        "judge": decisions.judge.__code__,
        "PoisonPillHandler.judge": PoisonPillHandler.judge.__code__,
        "should_retry": PoisonPillHandler.should_retry.__code__,
        "classify_error": PoisonPillHandler.classify_error.__code__,
        "failure": PoisonPillHandler.failure.__code__,
    }.items()
}


@benchmark("decisions", "One decision about a failure, and how many a success takes")
def decide(rounds: Rounds) -> Sequence[Row]:
    handler, now = PoisonPillHandler(max_attempts=5, backoff=Backoff.exponential(base=1, max=60)), datetime.now(UTC)
    metadata = MessageMetadata("019a0000-0000-7000-8000-000000000001", attempt=2, first_failure_time=now)
    message = Message(metadata.message_id, "orders", b"{}")
    cut, wrong = raised(ConnectionResetError("the other side hung up")), raised(ValueError("total is negative"))
    retried, dead = handler.failure(cut, metadata), handler.failure(wrong, metadata)
    sides = {
        "judge → retry with backoff": _timed(lambda: handler.judge(message, metadata, retried, now)),
        "judge → dead letter": _timed(lambda: handler.judge(message, metadata, dead, now)),
        "should_retry(ConnectionResetError) → True": _timed(lambda: handler.should_retry(metadata, cut)),
        "should_retry(ValueError) → False": _timed(lambda: handler.should_retry(metadata, wrong)),
        "classify_error(ValueError)": _timed(lambda: handler.classify_error(wrong)),
    }
    rows = [Row(label, Spread.of(taken), "ns") for label, taken in rounds.interleaved(sides).items()]
    quiet, loud = child.run("decisions:calls", int, failures=0), child.run("decisions:calls", int, failures=FAILURES)
    return [
        *rows,
        Row(f"calls of these in a run of {SUCCESSES:,} successes", Spread.of([quiet]), "calls", goal=Goal("figure", "=", 0)),
        Row(f"the same with {FAILURES} failures among them", Spread.of([loud]), "calls", goal=Goal("figure", "≥", FAILURES)),
    ]


def raised(error: Exception) -> Exception:
    """An exception as a handler leaves it: with a traceback."""
    try:
        raise error
    except Exception as caught:
        return caught


def _timed(call: Callable[[], object]) -> Callable[[], float]:
    """Nanoseconds per call, the call of the lambda included."""
    return lambda: timeit.timeit(call, number=CALLS) / CALLS * 1e9


def calls(folder: Path, failures: int) -> int:
    """How often a whole run asks for a decision, counted by the interpreter itself, in every thread."""
    logging.getLogger("unpoison").setLevel(logging.CRITICAL)
    app = App(f"sqlite:///{folder}/unpoison.db")

    @app.consumer("orders", isolation="inline")
    def handle(order: dict[str, Any]) -> None:
        if order["total"] < 0:
            raise ValueError("total is negative")

    app.publish_many("orders", [orders.order(number) for number in range(SUCCESSES)])
    if failures:
        app.publish_many("orders", [{"total": -1}] * failures)
    counted = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal counted
        if event == "call" and frame.f_code in COUNTED:
            counted += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        tally = app.run(until_empty=True).sources["orders"]
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if (tally.done, tally.dead) != (SUCCESSES, failures):
        raise AssertionError(f"{SUCCESSES} successes and {failures} failures became {tally}")
    return counted
