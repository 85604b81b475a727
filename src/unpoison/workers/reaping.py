"""What becomes of processes that handlers started and left behind?

The consumer is the parent of its workers, and inherits what they leave. Each must be collected when it ends, or it stays
in the process table for ever. Workers themselves are collected by those who keep them.
"""

import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

_KNOWN: set[int] = set()
_SESSIONS: deque[int] = deque(maxlen=1000)

COLLECTING = threading.RLock()
"""Held while strangers are collected, and by whoever makes a process until that is known: it must not be taken for one."""


def know(pid: int) -> None:
    """This process is collected by whoever started it. It leads a session of its own, as workers do."""
    with COLLECTING:
        _KNOWN.add(pid)
        _SESSIONS.append(pid)


def forget(pid: int) -> None:
    """Nobody waits for this process any more: if it still ends one day, it is collected like a stranger."""
    with COLLECTING:
        _KNOWN.discard(pid)


class Reaper:
    """Collects ended processes that nobody else waits for.

    With `reap_all` that is every unknown one: right where this process has no other children, as under `unpoison run` or as
    process 1. Otherwise only those of workers' sessions: an application's own subprocesses are its own business.
    """

    def __init__(self, *, reap_all: bool) -> None:
        self._reap_all = reap_all

    def reap(self) -> None:
        with COLLECTING:
            for pid in _ended_children():
                if pid not in _KNOWN and (self._reap_all or _session(pid) in _SESSIONS):
                    with suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)


def _ended_children() -> list[int]:
    """Children that have ended and were not collected. Looking at them does not collect them."""
    found = []
    with suppress(OSError):
        for pid in map(int, _children_text().split()):
            with suppress(ChildProcessError):
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    found.append(pid)
    return found


def _children_text() -> str:
    texts = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            texts.append((task / "children").read_text())
    return " ".join(texts)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
