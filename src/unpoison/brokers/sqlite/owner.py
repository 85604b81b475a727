"""Who holds a message, and how is it known that the holder is gone?

An owner is a consumer. It holds a file lock whose descriptor its child processes inherit, so the lock is free at
once when the last of them has ended, however it ended, and never before. No clock is involved: a consumer that is
merely slow, stopped or swapped out keeps its messages.
"""

import fcntl
import os
import pwd
import socket
import sqlite3
import stat
import time
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unpoison.brokers.sqlite.schema import POSITIONS
from unpoison.model.message import UNTRIED
from unpoison.port.reading import read_one
from unpoison.port.serialization import counters_text, read_counters
from unpoison.port.takeovers import Takeover


class Owner:
    """This consumer's own entry in the file."""

    def __init__(self, path: str) -> None:
        self._path, self._folder = Path(path), Path(f"{path}-owners")
        self._lock: int | None = None
        self.no = 0

    def register(self, connection: sqlite3.Connection) -> None:
        """Enter the owner and take its lock. Runs inside a transaction, so nobody sees the one without the other."""
        row = (socket.gethostname(), os.getpid(), time.time())
        self.no = connection.execute("insert into unpoison_owners (host, pid, since) values (?, ?, ?)", row).lastrowid or 0
        file = self._path.stat()
        with suppress(FileExistsError):
            self._folder.mkdir()
            _share(self._folder, file)
        self._lock = os.open(self._folder / str(self.no), os.O_RDWR | os.O_CREAT, 0o600)
        _share(self._folder / str(self.no), file)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def inherited_fds(self) -> Sequence[int]:
        """The lock's descriptor: whoever holds a copy of it keeps this owner alive."""
        return () if self._lock is None else (self._lock,)

    def is_valid(self, connection: sqlite3.Connection) -> bool:
        """False once somebody took this owner's messages over."""
        return connection.execute("select 1 from unpoison_owners where no = ?", (self.no,)).fetchone() is not None

    def vanished(self, connection: sqlite3.Connection) -> list[int]:
        """Owners besides this one whose processes are all gone."""
        rows = connection.execute("select no from unpoison_owners where no <> ?", (self.no,)).fetchall()
        return [no for (no,) in rows if not self._is_held(no)]

    def is_free(self, no: int) -> bool:
        """Whether nobody holds the lock of this owner."""
        return not self._is_held(no)

    def release(self) -> None:
        """Give the lock up. The entry stays until the next consumer has seen to what may be left."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self.no = 0

    def forget(self, no: int) -> None:
        """Remove the lock file of an owner that was taken over."""
        with suppress(FileNotFoundError):
            (self._folder / str(no)).unlink()

    def _is_held(self, no: int) -> bool:
        if no == self.no:
            return True
        try:
            lock = os.open(self._folder / str(no), os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def _share(made: Path, file: os.stat_result) -> None:
    """Open it to those who may write the file, and to nobody else: who holds a lock keeps messages of the dead from others."""
    mode = 0o700 if made.is_dir() else 0o600
    for bit, rights in ((stat.S_IWGRP, mode >> 3), (stat.S_IWOTH, mode >> 6)):
        if file.st_mode & bit:
            mode |= rights
    if file.st_gid != made.stat().st_gid:
        with suppress(PermissionError):  # a group that this user is not in
            os.chown(made, -1, file.st_gid)
    made.chmod(mode)


# Which processes lock a SQLite file just now?
#
# Asked of the kernel. To try the locks would need the right to write; to open the files that hold them would, when they are
# closed again, drop the locks that other connections of this very process have there.


_WRITER = range(120, 121)
_READERS = range(123, 128)
"""Bytes of the file beside the log that SQLite locks; fixed by its file format."""


def writers(path: str) -> set[int]:
    """Processes with a write transaction open. Empty where the system does not tell."""
    return set(_holders(path, _WRITER))


def readers(path: str) -> set[int]:
    """Processes with a read transaction open. Empty where the system does not tell."""
    return set(_holders(path, _READERS))


def holders(lock: str) -> set[int]:
    """Living processes that keep this lock file locked: who took the lock, or, if that one is gone, who has the file open still.

    Empty where the system does not tell, or not to this user.
    """
    taken = {int(words[4]) for words in _locks("FLOCK", lock)}
    alive = {pid for pid in taken if command_of(pid)}
    return alive or ({pid for pid in _processes() if lock in _opened(pid)} if taken else set())


def command_of(pid: int) -> str:
    """What the process is called; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def user_of(pid: int) -> str:
    """Who runs the process; empty if it is gone."""
    try:
        number = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _processes() -> Iterator[int]:
    return (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())


def _opened(pid: int) -> set[str]:
    try:
        return {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # it is gone, or another user's
        return set()


def _holders(path: str, wanted: range) -> Iterator[int]:
    for words in _locks("POSIX", f"{path}-shm"):
        first, last = int(words[6]), wanted[-1] if words[7] == "EOF" else int(words[7])
        if first <= wanted[-1] and last >= wanted[0]:
            yield int(words[4])


def _locks(kind: str, path: str) -> Iterator[list[str]]:
    """The kernel's lines about locks of this file."""
    try:
        # Not the device as well: on some file systems the kernel's list and stat() do not agree about it.
        inode = Path(path).stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()
        if len(words) == 8 and words[1] == kind and int(words[5].rpartition(":")[2]) == inode:  # who waits has one word more
            yield words


# What happens to the messages of a consumer that vanished?
#
# They come back as *returned*: whether they had been started is not known.


def take_over(run: sqlite3.Connection, owner: int, now: float) -> Takeover:
    """Give everything that this owner held back to its sources. Runs inside a transaction, with its lock known to be free."""
    held: Counter[int] = Counter()
    for first, last in run.execute("select first, last from unpoison_leases where owner = ?", (owner,)).fetchall():
        held[first // POSITIONS] += run.execute(
            "insert into unpoison_waiting (source, due, counters, id, key, headers, body, published) "
            "select ?, ?, ?, id, key, headers, body, published from unpoison_line where position between ? and ?",
            (first // POSITIONS, now, counters_text(UNTRIED.returned()), first, last),
        ).rowcount
        run.execute("delete from unpoison_line where position between ? and ?", (first, last))
    run.execute("delete from unpoison_leases where owner = ?", (owner,))
    for no, source, text in run.execute("select no, source, counters from unpoison_waiting where owner = ?", (owner,)).fetchall():
        held[source] += 1
        # What cannot be read stays as it is; the fetch that finds it makes it a dead letter.
        counters = read_one(text, lambda each: counters_text(read_counters(each).returned()), lambda each, _: each)
        run.execute("update unpoison_waiting set owner = null, due = ?, counters = ? where no = ?", (now, counters, no))
    host, pid, since = run.execute("select host, pid, since from unpoison_owners where no = ?", (owner,)).fetchone()
    run.execute("delete from unpoison_owners where no = ?", (owner,))
    name = "select name from unpoison_sources where no = ?"
    return Takeover(f"{host}:{pid}", since, {run.execute(name, (no,)).fetchone()[0]: count for no, count in held.items()})


# Which stretches of the line does this consumer hold, and when is one of them finished?
#
# A lease row covers a stretch from its first to its last position. Its row may go once every message in it has been settled;
# until then it stays, and after a crash whatever the line still holds of that stretch comes back.


@dataclass(frozen=True, slots=True)
class Progress:
    """What a settle would change: how many stay open in each lease it touches, and which leases end."""

    remaining: dict[int, int]
    ended: list[int]


class Leases:
    """The leases held, in memory. `after` only computes: a settle that fails must leave no trace here."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._last: dict[int, int] = {}
        self._remaining: dict[int, int] = {}

    def add(self, first: int, count: int) -> None:
        insort(self._firsts, first)
        self._last[first] = first + count - 1
        self._remaining[first] = count

    def after(self, positions: Sequence[int]) -> Progress:
        """What is left once these (sorted) positions are settled."""
        remaining: dict[int, int] = {}
        for low, high in runs(positions):
            at = max(0, bisect_right(self._firsts, low) - 1)
            while at < len(self._firsts) and self._firsts[at] <= high:
                first = self._firsts[at]
                covered = min(high, self._last[first]) - max(low, first) + 1
                if covered > 0:
                    remaining[first] = remaining.get(first, self._remaining[first]) - covered
                at += 1
        return Progress(remaining, [first for first, count in remaining.items() if count == 0])

    def apply(self, progress: Progress) -> None:
        self._remaining.update(progress.remaining)
        for first in progress.ended:
            del self._remaining[first], self._last[first]
            self._firsts.remove(first)

    def clear(self) -> None:
        self._firsts.clear()
        self._last.clear()
        self._remaining.clear()


def runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The stretches without gaps in sorted positions, as (low, high). A batch handled in full is one of them."""
    if not positions:
        return
    if positions[-1] - positions[0] + 1 == len(positions):
        yield positions[0], positions[-1]
        return
    low = high = positions[0]
    for position in positions[1:]:
        if position != high + 1:
            yield low, high
            low = position
        high = position
    yield low, high
