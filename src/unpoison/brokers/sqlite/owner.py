"""Owners: which consumer holds which messages, whether its processes are alive, and what happens when they are not.

An owner holds a file lock, and its child processes inherit the descriptor. The kernel frees the lock as soon as the last of
them has ended, however it ended, and never before. No clock is involved: a consumer that is slow, stopped or swapped out
keeps its messages.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from unpoison.brokers.sqlite.schema import POSITIONS
from unpoison.model.message import UNTRIED
from unpoison.port.serialization import counters_text
from unpoison.port.sql import returned_counters
from unpoison.port.takeovers import Takeover


class Owner:
    """This consumer's row in the table of owners, and its lock file."""

    def __init__(self, path: str) -> None:
        self._path, self._folder = Path(path), Path(f"{path}-owners")
        self._lock: int | None = None
        self.no = 0

    def register(self, connection: sqlite3.Connection) -> None:
        """Insert the row and take the lock, in the caller's transaction: no other process sees one without the other."""
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
        """The descriptor of the lock. While any process holds a copy, this owner is alive."""
        return () if self._lock is None else (self._lock,)

    def is_valid(self, connection: sqlite3.Connection) -> bool:
        """False once another consumer took this owner's messages over."""
        return connection.execute("select 1 from unpoison_owners where no = ?", (self.no,)).fetchone() is not None

    def vanished(self, connection: sqlite3.Connection) -> list[int]:
        """Other owners whose processes have all ended."""
        rows = connection.execute("select no from unpoison_owners where no <> ?", (self.no,)).fetchall()
        return [no for (no,) in rows if not self.is_held(no)]

    def release(self) -> None:
        """Release the lock. The row stays until another consumer has taken over what is left."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self.no = 0

    def forget(self, no: int) -> None:
        """Delete the lock file of an owner that was taken over."""
        with suppress(FileNotFoundError):
            (self._folder / str(no)).unlink()

    def is_held(self, no: int) -> bool:
        """Whether a process holds the lock of this owner."""
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
    """Give a lock the same write permissions as the file, and no more: holding it keeps others from taking messages over."""
    mode = 0o700 if made.is_dir() else 0o600
    for bit, rights in ((stat.S_IWGRP, mode >> 3), (stat.S_IWOTH, mode >> 6)):
        if file.st_mode & bit:
            mode |= rights
    if file.st_gid != made.stat().st_gid:
        with suppress(PermissionError):  # a group that this user is not in
            os.chown(made, -1, file.st_gid)
    made.chmod(mode)


class Leases:
    """The ranges of the line that this consumer holds. A lease row goes once every message in its range is settled.

    `after` only computes: a settle that fails must change nothing here.
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._last: dict[int, int] = {}
        self._remaining: dict[int, int] = {}

    def add(self, first: int, count: int) -> None:
        insort(self._firsts, first)
        self._last[first] = first + count - 1
        self._remaining[first] = count

    def after(self, positions: Sequence[int]) -> dict[int, int]:
        """How many messages stay open in each lease that a settle of these (sorted) positions touches. With none, it ends."""
        remaining: dict[int, int] = {}
        for low, high in ranges(positions):
            at = max(0, bisect_right(self._firsts, low) - 1)
            while at < len(self._firsts) and self._firsts[at] <= high:
                first = self._firsts[at]
                covered = min(high, self._last[first]) - max(low, first) + 1
                if covered > 0:
                    remaining[first] = remaining.get(first, self._remaining[first]) - covered
                at += 1
        return remaining

    def apply(self, remaining: Mapping[int, int]) -> None:
        self._remaining.update(remaining)
        for first, count in remaining.items():
            if not count:
                del self._remaining[first], self._last[first]
                self._firsts.remove(first)

    def clear(self) -> None:
        self._firsts.clear()
        self._last.clear()
        self._remaining.clear()


def ranges(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Sorted positions as ranges without gaps, (low, high). A batch that was handled in full is one range."""
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


def take_over(run: sqlite3.Connection, owner: int, now: float) -> Takeover:
    """Return everything that this owner held to its sources: whether it had been started is not known.

    Call it in a transaction, after checking there that the lock of the owner is free.
    """
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
        back = "update unpoison_waiting set owner = null, due = ?, counters = ? where no = ?"
        run.execute(back, (now, returned_counters(text), no))
    host, pid, since = run.execute("select host, pid, since from unpoison_owners where no = ?", (owner,)).fetchone()
    run.execute("delete from unpoison_owners where no = ?", (owner,))
    name = "select name from unpoison_sources where no = ?"
    return Takeover(f"{host}:{pid}", since, {run.execute(name, (no,)).fetchone()[0]: count for no, count in held.items()})


# Which processes lock the file just now is asked of the kernel. Trying the locks would need write permission. Opening and
# closing the lock files would drop the locks that other connections of this process have there.

WRITER = range(120, 121)
READERS = range(123, 128)
"""Bytes of the -shm file that SQLite locks. Its file format fixes them."""


def in_transaction(path: str, wanted: range) -> Iterator[int]:
    """Processes with an open transaction that writes, or reads. None where the system does not say."""
    for words in _locks("POSIX", f"{path}-shm"):
        first, last = int(words[6]), wanted[-1] if words[7] == "EOF" else int(words[7])
        if first <= wanted[-1] and last >= wanted[0]:
            yield int(words[4])


def holders(lock: str) -> set[int]:
    """Living processes that hold this lock: the one that took it or, if that has ended, those that inherited the file.

    Empty where the system does not say, or not to this user.
    """
    taken = {int(words[4]) for words in _locks("FLOCK", lock)}
    alive = {pid for pid in taken if command_of(pid)}
    return alive or ({pid for pid in _processes() if lock in _opened(pid)} if taken else set())


def command_of(pid: int) -> str:
    """The name of the program; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def user_of(pid: int) -> str:
    """The user of the process; empty if it has ended."""
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
    except OSError:  # the process has ended, or belongs to another user
        return set()


def _locks(kind: str, path: str) -> Iterator[list[str]]:
    """The lines of /proc/locks about this file."""
    try:
        # The device is not compared: on some file systems /proc/locks and stat() disagree about it.
        inode = Path(path).stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()
        # A waiting process has one word more.
        if len(words) == 8 and words[1] == kind and int(words[5].rpartition(":")[2]) == inode:
            yield words
