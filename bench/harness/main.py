"""What does `make bench` do? Runs the benchmarks, prints a table for each, keeps the data, and writes the docs if asked."""

import argparse
import datetime
import os
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console

import bench.cases  # noqa: F401 - registers them
from bench.harness import docs, machine, tables
from bench.harness.child import BENCH, scratch
from bench.harness.figures import Result
from bench.harness.registry import REGISTRY, Benchmark
from bench.harness.rounds import Rounds

PAGE = BENCH.parent / "docs" / "performance.md"
RESULTS = BENCH / "results.json"

console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
progress = Console(stderr=True, highlight=False)


def main() -> int:
    asked = _arguments()
    kept = read(asked.json)
    for option in ("letters", "brokers"):
        if value := getattr(asked, option):
            os.environ[f"BENCH_{option.upper()}"] = value
    names = [name for name in asked.only or REGISTRY if name in kept or not asked.no_run]
    for name in names:
        if not asked.no_run:
            kept[name] = measured(REGISTRY[name], asked.rounds, asked.patience)
            write(asked.json, kept)
        console.print(tables.terminal(kept[name]))
        console.print(tables.footnote(kept[name]), style="dim")
        console.print()
    if asked.write_docs:
        docs.write(PAGE, kept)
    missed = [f"{row.label} ({name})" for name in names for row in kept[name].missed]
    if missed:
        console.print(f"Goals missed: {'; '.join(missed)}", style="bold red")
    return 1 if missed and asked.check else 0


def measured(benchmark: Benchmark, count: int | None, patience: float) -> Result:
    began = time.monotonic()
    with progress.status(benchmark.name) as status:
        rounds = Rounds(count or benchmark.rounds, lambda text: status.update(f"{benchmark.name}: {text}"), patience)
        rows = benchmark.measure(rounds)
    return Result(
        name=benchmark.name,
        title=benchmark.title,
        rows=rows,
        rounds=rounds.ran,
        disturbed=rounds.disturbed,
        took=round(time.monotonic() - began, 1),
        day=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=machine.described(scratch()),
    )


def read(file: Path) -> dict[str, Result]:
    """Results of earlier runs, of benchmarks that still exist, in the order in which these are registered."""
    found = msgspec.json.decode(file.read_bytes(), type=dict[str, Result]) if file.exists() else {}
    return {name: found[name] for name in REGISTRY if name in found}


def write(file: Path, results: dict[str, Result]) -> None:
    ordered = {name: results[name] for name in REGISTRY if name in results}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Throughput, latency and growth, beside raw clients in the same run.")
    names = ", ".join(REGISTRY)
    parser.add_argument("--only", action="append", choices=REGISTRY, metavar="NAME", help=f"may be repeated: {names}")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each benchmark, instead of its own number")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where results are kept (bench/results.json)")
    parser.add_argument(
        "--patience", type=float, default=0.0, metavar="SECONDS", help="wait so long for a quiet machine, each time"
    )
    parser.add_argument("--letters", metavar="N", help="dead-letters: how many there are (100,000)")
    parser.add_argument("--brokers", metavar="NAMES", help="dead-letters: only these, as in sqlite,nats")
    parser.add_argument("--write-docs", action="store_true", help="fill the tables of docs/performance.md from the results")
    parser.add_argument("--no-run", action="store_true", help="measure nothing: only show or write what is kept")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    return parser.parse_args()
