"""How fast are the loop written by hand and unpoison, on the same server? The same sides that `make bench` compares.

Run in a fresh process: `python -m bench.peers.baselines redis raw URL 50000`. It prints the sample as JSON.
"""

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bench.harness import machine
from bench.harness.child import BENCH, scratch
from bench.harness.figures import Sample
from bench.peers.brokers import Broker
from bench.peers.results import Cell

SIDES = {
    "rabbitmq": ("rabbitmq:raw_drain", "rabbitmq:unpoison_drain", 50_000),
    "redis": ("redis:raw_drain", "redis:unpoison_drain", 50_000),
    "nats": ("nats:raw_push", "nats:unpoison_drain", 30_000),
    "postgresql": ("postgresql:raw_drain", "postgresql:unpoison_drain", 50_000),
    "sqlite": ("sqlite_drain:raw_lease", "isolation:drained", 200_000),
    "kafka": ("kafka:raw_batches", "kafka:unpoison_drain", 250_000),
}
"""Where `make bench` has them, and how many messages."""


def available() -> set[str]:
    """The brokers for which there are such sides."""
    return {broker for broker, (raw, *_) in SIDES.items() if (BENCH / "cases" / f"{raw.partition(':')[0]}.py").exists()}


def drained(which: str, broker: Broker, share: float) -> Cell:
    """`raw` or `unpoison`, with this share of its messages."""
    raw, ours, messages = SIDES[broker.name]
    side = raw if which == "raw" else ours
    command = [sys.executable, "-m", "bench.peers.baselines", side, str(max(1_000, round(messages * share / 1_000) * 1_000))]
    with tempfile.TemporaryDirectory(prefix="unpoison-peers-", dir=scratch()) as folder:
        given = {"url": broker.fresh(Path(folder))} if broker.server else {}
        variables = {**os.environ, "BENCH_SERVERS": ",".join(map(str, machine.servers))}
        ran = subprocess.run(
            command, cwd=BENCH.parent, env=variables, input=msgspec.json.encode(given), stdout=subprocess.PIPE, check=True
        )
    sample = msgspec.json.decode(ran.stdout, type=Sample)
    return Cell(sample.messages, sample.seconds, sample.cpu, sample.server_cpu)


def main(side: str, messages: str) -> None:
    module, _, function = side.partition(":")
    case: Any = importlib.import_module(f"bench.cases.{module}")
    for name in ("MESSAGES", "DRAINED"):
        if hasattr(case, name):
            setattr(case, name, int(messages))
    options = msgspec.json.decode(sys.stdin.buffer.read())
    with tempfile.TemporaryDirectory(prefix="unpoison-bench-", dir=scratch()) as folder:
        sample = getattr(case, function)(Path(folder), **options)
    sys.stdout.buffer.write(msgspec.json.encode(sample))


if __name__ == "__main__":
    main(*sys.argv[1:])
