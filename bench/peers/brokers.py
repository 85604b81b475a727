"""Where does a setup find its broker? Each run gets an empty place on a server of our own, or an empty file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import machine
from bench.harness.serving import served

SERVERS = {"sqs": "elasticmq"}
"""Those that are not called as the broker is."""


@dataclass(frozen=True)
class Broker:
    """A running one. `version` is what it says of itself."""

    name: str
    version: str
    server: Any
    fresh: Callable[[Path], str]

    @property
    def cpu(self) -> float:
        """Seconds that the server has used, with its children."""
        return sum(machine.used_by_tree(pid) for pid in machine.servers)


@contextmanager
def running(name: str) -> Iterator[Broker]:
    if name == "sqlite":
        import sqlite3  # noqa: PLC0415 - for its version only

        yield Broker(name, sqlite3.sqlite_version, None, lambda folder: f"sqlite:///{folder}/queue.db")
        return
    with served(SERVERS.get(name, name)) as server:
        yield Broker(name, server.version(), server, lambda _: server.fresh())
