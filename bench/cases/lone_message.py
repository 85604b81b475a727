"""How soon does a lone message start, and what does waiting for it cost?

A consumer runs in a process of its own and has nothing to do. Another process publishes one message, waits until its handler
has started, pauses for a random time, and publishes the next. Processes share the monotonic clock.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

from bench.harness import child, machine
from bench.harness.figures import Goal, Row, Spread
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison import App

MESSAGES = 200
PAUSES = (0.01, 0.1)
IDLE = 20.0

ISOLATIONS = ("process", "thread", "inline")


@benchmark("lone-message", "A message from another process to an idle consumer, and the price of idling", rounds=1)
def lone_message(rounds: Rounds) -> Sequence[Row]:
    side = partial(partial, child.run)
    soon = rounds.interleaved({kind: side("lone_message:delays", list[float], isolation=kind) for kind in ISOLATIONS})
    idling = rounds.interleaved({"all": side("lone_message:idle", dict[str, float])})["all"]
    return [
        *(
            Row(
                f"publish → handler starts, isolation={kind!r}",
                Spread.of([delay for delays in taken for delay in delays]),
                "ms",
                goal=Goal("figure", "≤", 10),
            )
            for kind, taken in soon.items()
        ),
        *(
            Row(
                f"idle consumer, isolation={kind!r}",
                Spread.of([used[kind] for used in idling]),
                "% of a core",
                goal=Goal("figure", "<", 1),
            )
            for kind in ISOLATIONS
        ),
    ]


def delays(folder: Path, isolation: str) -> list[float]:
    """Milliseconds from just before publish to the first line of the handler."""
    app, taken = App(_url(folder)), []
    with _idle_consumer(folder, isolation) as consumer:
        for _ in range(MESSAGES):
            time.sleep(random.uniform(*PAUSES))
            began = time.monotonic_ns()
            app.publish("orders", {"n": 1})
            taken.append((consumer.next_start() - began) / 1e6)
    app.close()
    return taken


def idle(folder: Path) -> dict[str, float]:
    """Percent of a core that a consumer and its workers use while there is nothing to do; all kinds at the same time."""
    with ExitStack() as stack:
        consumers = {kind: stack.enter_context(_idle_consumer(folder / kind, kind)) for kind in ISOLATIONS}
        time.sleep(1)
        used = {kind: machine.used_by_tree(consumer.pid) for kind, consumer in consumers.items()}
        time.sleep(IDLE)
        return {kind: (machine.used_by_tree(consumers[kind].pid) - before) / IDLE * 100 for kind, before in used.items()}


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer in another process, and the named pipe through which its handlers tell when they started."""

    pid: int
    starts: FileIO

    def next_start(self) -> int:
        return int(self.starts.readline())


@contextmanager
def _idle_consumer(folder: Path, isolation: str) -> Iterator[Consumer]:
    """A consumer that has handled one message, so that it is known to be up."""
    folder.mkdir(exist_ok=True)
    starts_at = folder / "starts"
    os.mkfifo(starts_at)
    environment = os.environ | {"UNPOISON_URL": _url(folder), "BENCH_ISOLATION": isolation, "BENCH_STARTS": str(starts_at)}
    command = [sys.executable, "-m", "bench.cases.idle_consumer"]
    with (
        os.fdopen(os.open(starts_at, os.O_RDWR), "rb", buffering=0) as starts,  # opening it for both waits for nobody
        subprocess.Popen(command, cwd=child.BENCH.parent, env=environment) as process,
    ):
        try:
            consumer = Consumer(process.pid, starts)
            app = App(_url(folder))
            app.publish("orders", {"n": 0})
            app.close()
            consumer.next_start()
            yield consumer
        finally:
            process.terminate()


def _url(folder: Path) -> str:
    return f"sqlite:///{folder}/unpoison.db"
