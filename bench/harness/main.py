"""What does `make bench` do? Runs the benchmarks, prints a table for each, keeps the data, and writes the docs if asked."""

import argparse
import datetime
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

console = Console(highlight=False)
progress = Console(stderr=True, highlight=False)


def main() -> int:
    asked = _arguments()
    kept = read(asked.json)
    for name in [] if asked.no_run else asked.only or REGISTRY:
        result = measured(REGISTRY[name], asked.rounds)
        kept[name] = result
        write(asked.json, kept)
        console.print(tables.terminal(result))
        console.print(tables.footnote(result), style="dim")
        console.print()
    if asked.write_docs:
        docs.write(PAGE, kept)
    missed = [f"{row.label} ({name})" for name in asked.only or kept for row in kept[name].missed]
    if missed:
        console.print(f"Goals missed: {'; '.join(missed)}", style="bold red")
    return 1 if missed and asked.check else 0


def measured(benchmark: Benchmark, count: int | None) -> Result:
    began = time.monotonic()
    with progress.status(benchmark.name) as status:
        rounds = Rounds(count or benchmark.rounds, lambda text: status.update(f"{benchmark.name}: {text}"))
        rows = benchmark.measure(rounds)
    return Result(
        name=benchmark.name,
        title=benchmark.title,
        rows=rows,
        rounds=rounds.count,
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
    parser.add_argument("--write-docs", action="store_true", help="fill the tables of docs/performance.md from the results")
    parser.add_argument("--no-run", action="store_true", help="measure nothing: only show or write what is kept")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    return parser.parse_args()
