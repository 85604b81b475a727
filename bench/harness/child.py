"""How does each side get a process and a folder of its own?

A side is a function in a module of `bench.cases`. It gets an empty folder, times what is to be timed, and returns a value
that goes back as JSON. A fresh process each time: nobody inherits a warm cache, a heap or a thread from the side before.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from bench.harness import machine
from bench.harness.figures import Sample

Value = TypeVar("Value")

BENCH = Path(__file__).resolve().parent.parent


def scratch() -> Path:
    """Where files are made. /var/tmp is on a disk where /tmp may be in memory, and there syncing costs nothing."""
    chosen = os.environ.get("BENCH_FOLDER")
    on_disk = Path("/var/tmp")
    return Path(chosen) if chosen else on_disk if on_disk.is_dir() else Path(tempfile.gettempdir())


class Stopwatch:
    """Times a `with` block: the clock on the wall, and the CPU of this process with its children.

    Also that of the servers whose process ids are in BENCH_SERVERS.
    """

    def __enter__(self) -> Self:
        self._cpu, self._server_cpu, self._began = machine.used_by_us(), _used_by_servers(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu = machine.used_by_us() - self._cpu
        self.server_cpu = _used_by_servers() - self._server_cpu

    def sample(self, messages: int) -> Sample:
        return Sample(messages, self.seconds, self.cpu, self.server_cpu)


def _used_by_servers() -> float:
    return sum(machine.used_by_tree(int(pid)) for pid in os.environ.get("BENCH_SERVERS", "").split(",") if pid)


def run(side: str, returns: type[Value], **options: Any) -> Value:
    """Call a side, "sqlite_drain:raw_lease" for example, in a fresh process and return what it returned."""
    module, _, function = side.partition(":")
    command = [sys.executable, "-m", "bench.harness.child", module, function]
    answer = subprocess.run(command, cwd=BENCH.parent, input=msgspec.json.encode(options), stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(answer.stdout, type=returns)


def main() -> None:
    module, function = sys.argv[1:]
    options = msgspec.json.decode(sys.stdin.buffer.read())
    with tempfile.TemporaryDirectory(prefix="unpoison-bench-", dir=scratch()) as folder:
        value = getattr(importlib.import_module(f"bench.cases.{module}"), function)(Path(folder), **options)
    sys.stdout.buffer.write(msgspec.json.encode(value))


if __name__ == "__main__":
    main()
