"""How does an idle consumer notice a new message within milliseconds, at next to no cost?

Every commit appends to the file's write-ahead log, and the kernel tells those who watch it (inotify). Where there
is no inotify, SQLite's own change counter is looked at every 10 ms. Either way a slow look every 100 ms stands behind it.
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
"""Seconds to the first look after the log was written to: a commit becomes visible only when it is synced, without a sound."""

RECOVERY = 1.0
"""Seconds before the bell tries again after the file could not be read."""


Vanished = Callable[[sqlite3.Connection], bool]
"""Tells whether a consumer vanished that may have left messages."""


class Bell:
    """Rings when a message arrives, a delay is over or a consumer vanished; only after `arm`: a busy consumer needs no bell."""

    def __init__(
        self, path: str, sources: Sequence[int], ring: Ring, vanished: Vanished, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._sources, self._ring, self._vanished, self._clock = path, sources, ring, vanished, clock
        self._armed = threading.Event()
        self._closed = threading.Event()
        self._rung_for = 0.0
        self._looks_again = 0.0
        self._watch = _watch(f"{path}-wal")
        self._hang_up, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="unpoison-sqlite-bell", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """Called when a fetch found the source empty: from now on the next arrival rings."""
        self._armed.set()

    def close(self) -> None:
        self._closed.set()
        self._armed.set()
        os.write(self._wake, b"x")
        self._thread.join(timeout=5)
        for descriptor in (self._watch, self._hang_up, self._wake):
            if descriptor is not None:
                os.close(descriptor)

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                with closing(connect(self._path)) as connection:
                    self._serve(connection)
            except (sqlite3.Error, UnpoisonError, OSError):  # the consumer meets the same error and reports it
                self._ring()
                self._sleep(RECOVERY)

    def _serve(self, connection: sqlite3.Connection) -> None:
        seen = -1
        while True:
            self._armed.wait()
            seen = self._wait_for_change(connection, seen)
            self._armed.clear()
            if self._closed.is_set():  # looked at after the clear, which may have undone what close() set
                return
            self._ring()

    def _wait_for_change(self, connection: sqlite3.Connection, seen: int) -> int:
        """Return once something changed since `seen`, the next delay is over or a consumer vanished."""
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
                    self._rung_for = due
                    return version
                pause = min(pause, due - self._clock())
            interval = LOOK_CLOSELY if self._sleep(max(0.0, pause)) else min(2 * interval, LOOK_EVERY)
        return seen

    def _has_vanished(self, connection: sqlite3.Connection) -> bool:
        """A consumer that dies changes nothing in the file, so its lock is looked at now and then."""
        now = time.monotonic()
        if now < self._looks_again:
            return False
        self._looks_again = now + LOOK_EVERY
        return self._vanished(connection)

    def _next_due(self, connection: sqlite3.Connection) -> float | None:
        """The next delay to end. Rung once for each: what the consumer then leaves lying must not ring for ever."""
        moments = [
            connection.execute(
                "select min(due) from unpoison_waiting where source = ? and alone = ? and owner is null and due > ?",
                (source, alone, self._rung_for),
            ).fetchone()[0]
            for source in self._sources
            for alone in (0, 1)
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    def _sleep(self, pause: float) -> bool:
        """Sleep for so long, or until the log is written to. True if it was."""
        waiting = select.poll()  # and not select.select, which knows only the first 1,024 descriptors of a process
        waiting.register(self._hang_up, select.POLLIN)
        if self._watch is not None:
            waiting.register(self._watch, select.POLLIN)
        ready = waiting.poll(math.ceil(pause * 1000))
        if self._watch is None or (self._watch, select.POLLIN) not in ready:
            return False
        os.read(self._watch, 65536)
        return True


def _watch(path: str) -> int | None:
    """A descriptor that becomes readable when the file is written to; None where the system has no inotify."""
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
