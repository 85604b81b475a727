"""The bell: it wakes an idle consumer within milliseconds of a new message, at nearly no cost.

Every commit appends to the write-ahead log of the file, and the kernel reports that (inotify). Without inotify, the bell reads
SQLite's change counter every 10 ms. In both cases it also looks every 100 ms.
"""

import ctypes
import math
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from unpoison.brokers.sqlite.file import connect
from unpoison.errors import UnpoisonError
from unpoison.port.broker import Ring

_IN_MODIFY = 0x2
_IN_NONBLOCK_CLOEXEC = 0o2004000
LOOK_EVERY = 0.1
LOOK_EVERY_UNWATCHED = 0.01
LOOK_CLOSELY = 0.001
"""Seconds to the first look after a write to the log: a commit is visible once it is synced, which inotify does not report."""

RECOVERY = 1.0
"""Seconds before the bell tries again after it could not read the file."""


Vanished = Callable[[sqlite3.Connection], bool]
"""Whether a consumer vanished that may have left messages."""


class Bell:
    """Rings when a message arrives or is due, or a consumer vanished; once after each `arm`: a busy consumer needs no bell."""

    def __init__(
        self, path: str, sources: Sequence[int], ring: Ring, vanished: Vanished, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._sources, self._ring, self._vanished, self._clock = path, sources, ring, vanished, clock
        self._armed = threading.Event()
        self._closed = threading.Event()
        self._rang_for = 0.0
        self._looks_again = 0.0
        self._watch = _watch(f"{path}-wal")
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="unpoison-sqlite-bell", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """A fetch found nothing: ring at the next change."""
        self._armed.set()

    def close(self) -> None:
        self._closed.set()
        self._armed.set()
        os.write(self._wake_writer, b"x")
        self._thread.join(timeout=5)
        for descriptor in (self._watch, self._wake_reader, self._wake_writer):
            if descriptor is not None:
                os.close(descriptor)

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                with closing(connect(self._path)) as connection:
                    self._serve(connection)
            except (sqlite3.Error, UnpoisonError, OSError):  # the consumer's own connection fails too and reports it
                self._ring()
                self._sleep(RECOVERY)

    def _serve(self, connection: sqlite3.Connection) -> None:
        seen = -1
        while True:
            self._armed.wait()
            seen = self._wait_for_change(connection, seen)
            self._armed.clear()
            if self._closed.is_set():  # checked after the clear, which may have undone the set of close()
                return
            self._ring()

    def _wait_for_change(self, connection: sqlite3.Connection, seen: int) -> int:
        """Return when the file has changed since `seen`, a message is due or a consumer vanished."""
        due, asked, interval = None, -1, LOOK_EVERY
        while not self._closed.is_set():
            version: int = connection.execute("pragma data_version").fetchone()[0]
            if version != seen:
                return version
            if asked != version:
                due, asked = self._next_due(connection), version
            if self._has_vanished(connection):
                return version
            pause = interval if self._watch is not None else LOOK_EVERY_UNWATCHED
            if due is not None:
                if due <= self._clock():
                    self._rang_for = due
                    return version
                pause = min(pause, due - self._clock())
            interval = LOOK_CLOSELY if self._sleep(max(0.0, pause)) else min(2 * interval, LOOK_EVERY)
        return seen

    def _has_vanished(self, connection: sqlite3.Connection) -> bool:
        """A consumer that dies does not change the file, so the locks are checked regularly."""
        now = time.monotonic()
        if now < self._looks_again:
            return False
        self._looks_again = now + LOOK_EVERY
        return self._vanished(connection)

    def _next_due(self, connection: sqlite3.Connection) -> float | None:
        """The next due time. Each rings once: a message that the consumer leaves must not ring for ever."""
        query = "select min(due) from unpoison_waiting where source = ? and alone = ? and owner is null and due > ?"
        wanted = [(source, alone, self._rang_for) for source in self._sources for alone in (0, 1)]
        moments = [connection.execute(query, values).fetchone()[0] for values in wanted]
        return min((moment for moment in moments if moment is not None), default=None)

    def _sleep(self, pause: float) -> bool:
        """Sleep until the log is written to, at most `pause` seconds. Returns whether it was."""
        waiting = select.poll()  # select.select fails with more than 1,024 descriptors
        waiting.register(self._wake_reader, select.POLLIN)
        if self._watch is not None:
            waiting.register(self._watch, select.POLLIN)
        ready = waiting.poll(math.ceil(pause * 1000))
        if self._watch is None or (self._watch, select.POLLIN) not in ready:
            return False
        os.read(self._watch, 65536)
        return True


def _watch(path: str) -> int | None:
    """A descriptor that becomes readable when the file is written to; None without inotify."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(_IN_NONBLOCK_CLOEXEC)
    except (AttributeError, OSError):
        return None
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
