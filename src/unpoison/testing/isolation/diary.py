"""What do the processes of a scene share? Its plan, and a diary of what handlers really did, where and in which order.

Each line of the diary is written with one call before the action, and stays even if the action kills every process.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from unpoison.brokers import ADAPTERS, Adapter
from unpoison.model.message import Delivery
from unpoison.testing.processes import Effects

PATIENCE = 30.0
"""Seconds after which waiting is given up, so that a broken promise fails instead of hanging."""

LOOK_EVERY = 0.005
"""Seconds between two looks at what another process may have written."""


class Entry(msgspec.Struct, frozen=True):
    """One line: what happened to which message, and where."""

    what: str
    id: str
    worker: int
    consumer: int
    attempt: int = 0
    returned: bool = False
    note: str = ""


class Diary:
    """Written by handlers in their processes, read by the promise in its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "diary"
        self._lines = Effects(folder, "diary")
        self._read: list[Entry] = []
        self._offset = 0

    def write(self, what: str, id_: str = "", note: str = "", attempt: int = 0, returned: bool = False) -> None:
        entry = Entry(what, id_, os.getpid(), os.getppid(), attempt, returned, note)
        self._lines.add(msgspec.json.encode(entry).decode())

    def start(self, delivery: Delivery) -> None:
        self.write("start", delivery.id, attempt=delivery.attempt, returned=delivery.returned)

    def entries(self, what: str | None = None) -> list[Entry]:
        self._read_on()
        return [entry for entry in self._read if what in (None, entry.what)]

    def _read_on(self) -> None:
        """What was added since it was last read: a promise looks hundreds of times."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, end, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(end)
        self._read += [msgspec.json.decode(line, type=Entry) for line in whole.splitlines()]

    def starts(self) -> Counter[str]:
        return Counter(entry.id for entry in self.entries("start"))

    def done(self) -> Counter[str]:
        return Counter(entry.id for entry in self.entries("done"))

    def of(self, id_: str) -> list[Entry]:
        return [entry for entry in self.entries() if entry.id == id_]

    def gate(self, name: str) -> Path:
        """A file that is made to let handlers go on that wait for it."""
        return self.folder / f"gate-{name}"

    def wait_for_start(self, *ids: str) -> list[Entry]:
        """Return once each of these was started; their first starts."""
        wait_until(lambda: set(ids) <= set(self.starts()), lambda: f"Of {ids} only {set(self.starts())} were started")
        first = {entry.id: entry for entry in reversed(self.entries("start"))}
        return [first[id_] for id_ in ids]

    def wait_for_starts(self, id_: str, count: int) -> None:
        wait_until(lambda: self.starts()[id_] >= count, lambda: f"{id_} was started {self.starts()[id_]} times, not {count}")

    def wait_for_another_start(self, ids: Sequence[str], seen: set[str]) -> str:
        """Return once one of these was started that was not seen yet: its id."""
        wait_until(lambda: set(ids) & set(self.starts()) - seen, lambda: f"None of {set(ids) - seen} was started")
        return next(iter(set(ids) & set(self.starts()) - seen))

    def wait_for_worker_starts(self, count: int) -> None:
        wait_until(lambda: len(self.entries("worker-start")) >= count, lambda: f"not {count} workers were started")

    def wait_for_done(self, ids: Sequence[str]) -> None:
        wait_until(lambda: set(ids) <= set(self.done()), lambda: f"Not done are {set(ids) - set(self.done())}")


def wait_until(is_so: Callable[[], Any], otherwise: Callable[[], str], patience: float = PATIENCE) -> None:
    """Return as soon as it is so; it is brought about by other processes, which cannot ring."""
    until = time.monotonic() + patience
    while not is_so():
        if time.monotonic() > until:
            raise AssertionError(f"{otherwise()}, after {patience:g} s.")
        time.sleep(LOOK_EVERY)


# The plan: how a consumer, its template and its workers know what to do. It travels in one environment variable.


VARIABLE = "ISOLATION_PLAN"
SOURCE = "orders"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of one scene share. `token` makes them recognisable among all processes of the machine.

    `adapters` are those that the promise's own process knows: other processes do not know one that is not part of unpoison.
    """

    url: str
    folder: str
    token: str
    app: str
    style: str = "sync"
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    adapters: dict[str, Adapter] = {}
    also: dict[str, Any] = {}

    def as_environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("UNPOISON_")}
        return kept | {VARIABLE: msgspec.json.encode(self).decode()}


def current_plan() -> Plan:
    """The plan of this process, with its adapters made known here."""
    plan = msgspec.json.decode(os.environ[VARIABLE], type=Plan)
    ADAPTERS.update(plan.adapters)
    return plan
