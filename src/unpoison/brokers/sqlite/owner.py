"""Who holds a message, and how is it known that the holder is gone?

An owner is a consumer. It holds a file lock whose descriptor its child processes inherit, so the lock is free at
once when the last of them has ended, however it ended, and never before. No clock is involved: a consumer that is
merely slow, stopped or swapped out keeps its messages.
"""

import fcntl
import os
import socket
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class Owner:
    """This consumer's own entry in the file."""

    def __init__(self, path: str) -> None:
        self._folder = Path(f"{path}-owners")
        self._lock: int | None = None
        self.no = 0

    def register(self, connection: sqlite3.Connection) -> None:
        """Enter the owner and take its lock. Runs inside a transaction, so nobody sees the one without the other."""
        row = (socket.gethostname(), os.getpid(), time.time())
        self.no = connection.execute("insert into unpoison_owners (host, pid, since) values (?, ?, ?)", row).lastrowid or 0
        self._folder.mkdir(exist_ok=True)
        self._lock = os.open(self._folder / str(self.no), os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def ties(self) -> Sequence[int]:
        """The lock's descriptor: whoever holds a copy of it keeps this owner alive."""
        return () if self._lock is None else (self._lock,)

    def is_valid(self, connection: sqlite3.Connection) -> bool:
        """False once somebody took this owner's messages over."""
        return connection.execute("select 1 from unpoison_owners where no = ?", (self.no,)).fetchone() is not None

    def vanished(self, connection: sqlite3.Connection) -> list[int]:
        """Owners besides this one whose processes are all gone."""
        rows = connection.execute("select no from unpoison_owners where no <> ?", (self.no,)).fetchall()
        return [no for (no,) in rows if not self._is_held(no)]

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
