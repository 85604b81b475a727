"""Who holds a message, and how is it known that the holder is gone?

An owner is a consumer. It holds a file lock whose descriptor its child processes inherit, so the lock is free at
once when the last of them has ended, however it ended, and never before. No clock is involved: a consumer that is
merely slow, stopped or swapped out keeps its messages.
"""

import fcntl
import os
import socket
import sqlite3
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


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
