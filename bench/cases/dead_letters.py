"""What does each command on a DLQ with very many letters take? As an operator runs it: a process of its own, from start to end.

Letters are written by a consumer whose handler fails, with bodies of 2 KB. Of each command the wall time is taken, or letters per
second, and the most memory its process had. `--letters` says how many letters there are (SQS has a twentieth of them: a server on
one machine answers a few hundred requests a second), `--brokers` which brokers are measured.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.harness import child
from bench.harness.figures import Goal, Row, Spread
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from unpoison import App

LETTERS = 100_000
SQS_SHARE = 20
BODY = "x" * 2_000
PUBLISHED_AT_ONCE = 1_000
ENDED_AFTER = 600.0
"""Seconds after which a command is ended; then that is its figure."""
SECONDS, MEGABYTES = Goal("figure", "≤", 2), Goal("figure", "≤", 300)
REPLAYED, PURGED = Goal("figure", "≥", 5_000), Goal("figure", "≥", 10_000)
BROKERS = {
    "SQLite": None,
    "PostgreSQL": "postgresql",
    "Redis": "redis",
    "NATS": "nats",
    "Kafka": "kafka",
    "RabbitMQ": "rabbitmq",
    "SQS": "elasticmq",
}
WHOLE = ("RabbitMQ", "SQS")
"""These cannot be looked into without reading all."""

# The memory of a forked process counts that of its parent until it starts its program: so the parent is a small one.
_SMALL_PARENT = """
import os, sys
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
with open(sys.argv[1], "w") as file:
    file.write(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status) & 255)
"""


class Taken(msgspec.Struct, frozen=True):
    """What one command took. `letters` is how many it dealt with, where it deals with all."""

    seconds: float
    megabytes: float
    letters: int = 0


@benchmark("dead-letters", "Commands on a DLQ with 100,000 letters of 2 KB (SQS: 5,000)", rounds=1)
def dead_letters(rounds: Rounds) -> Sequence[Row]:
    wanted = os.environ.get("BENCH_BROKERS", "").lower().split(",")
    rows: list[Row] = []
    for name, server in BROKERS.items():
        if wanted == [""] or name.lower() in wanted:
            count = int(os.environ.get("BENCH_LETTERS", LETTERS)) // (SQS_SHARE if name == "SQS" else 1)
            with _urls(server) as fresh:
                taken = rounds.interleaved({name: lambda fresh=fresh, count=count: _measured(fresh(), count)})[name]  # type: ignore[misc]
            rows += _rows(name, taken)
    return rows


def _rows(name: str, taken: Sequence[dict[str, Taken]]) -> Iterator[Row]:
    most = [max(each.megabytes for each in one.values()) for one in taken]
    for command in taken[0]:
        all_ = [one[command] for one in taken]
        label = f"{name}: {command}"
        if all_[0].letters:
            goal = {"replay --all": REPLAYED, "purge": PURGED}.get(command)
            rates = Spread.of([each.letters / each.seconds for each in all_])
            yield Row(label, rates, "letters/s", goal=None if name == "SQS" else goal)
        else:
            yield Row(label, Spread.of([each.seconds for each in all_]), "s", goal=None if name in WHOLE else SECONDS)
    yield Row(f"{name}: most memory of a command", Spread.of(most), "MB", goal=MEGABYTES)


def _measured(url: str, count: int) -> dict[str, Taken]:
    """Every command once."""
    child.run("dead_letters:filled", int, url=url, count=count)
    taken: dict[str, Taken] = {}

    def run(label: str, *arguments: str) -> str:
        text, taken[label] = _run(url, *arguments)
        return text

    run("count", "count")
    run("ls --limit 5", "ls", "--limit", "5")
    ids = [letter["id"] for letter in json.loads(_run(url, "ls", "--limit", "10", "--json")[0] or "[]")] or ["?"]
    run("show ID", "show", ids[-1])
    run("replay ID", "replay", ids[-1])
    run("discard ID", "discard", ids[-2 % len(ids)])
    told = json.loads(run("replay --all", "replay", "--all", "--yes", "--json") or "{}")
    taken["replay --all"] = msgspec.structs.replace(taken["replay --all"], letters=len(told.get("replayed", ())) or 1)
    child.run("dead_letters:filled", int, url=url, count=0)
    told = json.loads(run("purge", "purge", "--yes", "--json") or "{}")
    taken["purge"] = msgspec.structs.replace(taken["purge"], letters=sum(told.values()) or 1)
    return taken


def filled(_: Path, url: str, count: int) -> int:
    """Publish so many, and let everything that is in the source fail."""
    logging.disable(logging.CRITICAL)
    app = App(url)

    @app.consumer("orders", isolation="inline", admission=None)
    def fail(order: dict[str, Any]) -> None:
        raise ValueError(f"order {order['id']} has no total")

    for first in range(0, count, PUBLISHED_AT_ONCE):
        numbers = range(first, min(count, first + PUBLISHED_AT_ONCE))
        app.publish_many("orders", [{"id": number, "text": BODY} for number in numbers])
    app.run(until_empty=True)
    app.close()
    return count


def _run(url: str, *arguments: str) -> tuple[str, Taken]:
    """What the command printed, and what it took."""
    command = [sys.executable, "-m", "unpoison", "dlq", *arguments, "--url", url, "--source", "orders"]
    with tempfile.TemporaryDirectory(prefix="unpoison-bench-") as folder:
        memory = Path(folder) / "memory"
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _SMALL_PARENT, str(memory), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            text, _ = process.communicate(timeout=ENDED_AFTER)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its child as well
            process.communicate()
            return "", Taken(ENDED_AFTER, 0.0)
        seconds = time.perf_counter() - began
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)} on {url} ended with {process.returncode}")
        return text.decode(), Taken(seconds, int(memory.read_text()) / 1024)


@contextmanager
def _urls(server: str | None) -> Iterator[Callable[[], str]]:
    """Where a fresh place is, each time it is asked for."""
    if server is None:
        with tempfile.TemporaryDirectory(prefix="unpoison-bench-", dir=child.scratch()) as folder:
            yield lambda: f"sqlite:///{tempfile.mkdtemp(dir=folder)}/letters.db"
        return
    with served(server) as there:
        yield lambda: _with_group(there.fresh()) if server == "kafka" else there.fresh()


def _with_group(url: str) -> str:
    return url if "group=" in url else f"{url}{'&' if '?' in url else '?'}group=billing"
