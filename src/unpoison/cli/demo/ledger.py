"""What did the handlers really do? They write it down themselves, in a file that unpoison knows nothing of.

One line for each start and each end. A line is appended in one write, so a process that is killed leaves whole lines, and
what it did before is still counted: no counter in the memory of a consumer could say that.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

VARIABLE = "DEMO_LEDGER"


class Entry(NamedTuple):
    """One line: when, what (start, done, discard, requeue) and of which order."""

    at: float
    what: str
    order: int


class Ledger:
    """The writing end, used by handlers. Without a path nothing is written."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    @classmethod
    def of_this_process(cls) -> "Ledger":
        """The one that the demo named in the environment of its processes."""
        return cls(os.environ.get(VARIABLE))

    def write(self, what: str, order: int) -> None:
        if self._path is None:
            return
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{time.time():.6f} {what} {order}\n".encode())
        finally:
            os.close(file)

    def starts(self, order: int) -> list[float]:
        """When this order was started, so far."""
        if self._path is None:
            return []
        return [entry.at for entry in map(entry_of, Tail(Path(self._path)).lines()) if entry[1:] == ("start", order)]


class Tail:
    """Gives the lines that were added to a file since it was last asked. The file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self._read += len(whole) + 1
        return whole.decode("utf-8", "replace").split("\n")


def entry_of(line: str) -> Entry:
    at, what, order = line.split(" ")
    return Entry(float(at), what, int(order))
