"""What was found, as plain values that are kept as JSON between a run and the page."""

from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from bench.peers.setups import PEERS

RESULTS = PEERS / "results.json"
KILL_TEST = PEERS / "kill_test.json"
GROWTH = PEERS / "growth.json"

WAITING, DONE, GONE = "in the queue", "done", "gone"
"""Where a message is, if it is in no place that keeps it for a person."""

Ended = Literal["ended", "loops", "silent", "out of time"]


class Cell(msgspec.Struct, frozen=True):
    """One side in one round. `cpu` and `server_cpu` in seconds; `left` is what was finished but not acknowledged."""

    messages: int
    seconds: float
    cpu: float
    server_cpu: float
    left: int = 0
    disturbed: bool = False

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class Drained(msgspec.Struct):
    """All rounds of one broker: side → its cells, one for each round. A side is the name of a setup, or `raw`, or `unpoison`."""

    version: str
    day: str
    machine: str
    rounds: int
    cells: dict[str, list[Cell]]
    failed: dict[str, str] = {}
    """Sides that did not get through, and what they said."""


class Killed(msgspec.Struct, frozen=True):
    """What became of the messages of the kill test."""

    poison_ran: int
    end: Ended
    healthy_ran: list[int]
    places: dict[str, str]
    restarts: int
    seconds: float


class KillTest(msgspec.Struct):
    day: str
    versions: dict[str, str]
    """Of the brokers."""
    outcomes: dict[str, list[Killed]]
    """Of each setup, one for each run."""


class Grown(msgspec.Struct, frozen=True):
    """A queue of so many, drained by unpoison. Memory in bytes: all its processes together, at their highest."""

    messages: int
    seconds: float
    cpu: float
    memory: int


class Growth(msgspec.Struct):
    day: str
    machine: str
    sizes: dict[str, list[Grown]]


Kept = TypeVar("Kept")


def read(file: Path, kind: type[Kept]) -> Kept | None:
    return msgspec.json.decode(file.read_bytes(), type=kind) if file.exists() else None


def write(file: Path, value: object) -> None:
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    unfinished.replace(file)
