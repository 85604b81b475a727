"""How does a promise use real processes, wait for them without sleeping, and know what they did?"""

import faulthandler
import gc
import os
import select
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

PATIENCE = 60.0
"""Seconds after which waiting is given up, so that a broken promise fails instead of hanging."""


class Gate:
    """Opened once by any thread or process, and waited for by others. Make it before the fork."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._watched, self._written = os.pipe()

    def open(self) -> None:
        os.write(self._written, b"x")

    def is_open(self) -> bool:
        return _readable(self._watched, 0)

    def wait(self) -> None:
        """Return once it is open; it stays open."""
        if not _readable(self._watched, PATIENCE):
            raise AssertionError(f"The gate {self._name!r} was not opened within {PATIENCE:g} s.")

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._watched)
            os.close(self._written)


class Child:
    """A forked process that does one piece of work and ends: with 0, or with 1 if the work raised."""

    def __init__(self, work: Callable[[], object]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._alive, held = os.pipe()  # only the child holds the other end, so it closes when the child is gone
        self.pid = _fork()
        if self.pid == 0:
            _work_and_end(work)
        os.close(held)
        self._status: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._status is None:
            self.kill()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as the out-of-memory killer would, and return once it is gone."""
        self.send(signal.SIGKILL)
        self.wait()

    def is_running(self) -> bool:
        return self._status is None and not _readable(self._alive, 0)

    def wait(self) -> int:
        """Its exit code; below zero the signal that ended it."""
        if self._status is None:
            in_time = _readable(self._alive, PATIENCE)
            if not in_time:
                os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._alive)
            if not in_time:
                raise AssertionError(f"The child did not end within {PATIENCE:g} s.")
        return self._status


def _fork() -> int:
    """Garbage of the test runner is never collected in the child. A client of a broker that is ended there waits for threads
    which the child does not have, or ends the process."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            # The test runner may have threads. None of them holds a lock that the work needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
    return pid


def _work_and_end(work: Callable[[], object]) -> None:
    """Nothing of the test runner may run in the child, so it ends here whatever happens."""
    code = 1
    faulthandler.dump_traceback_later(PATIENCE * 0.9, file=2)  # whoever waits for it is about to give up: say where it hangs
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _readable(descriptor: int, timeout: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout * 1000))


# What did handlers really do? Written down outside of the broker, so that no fault of it can hide a start.


class Effects:
    """Lines that any thread and any process may add. One is there for good once `add` returns, even if the process is killed."""

    def __init__(self, folder: Path, name: str = "effects") -> None:
        self._path = folder / name
        self._descriptor, self._file = -1, (0, 0)

    def __del__(self) -> None:
        if self._status() is not None:
            os.close(self._descriptor)

    def add(self, line: str) -> None:
        os.write(self._opened(), f"{line}\n".encode())  # one write to a file opened for appending is never torn or mixed

    def _opened(self) -> int:
        """Kept open. A file opened after a handler has closed descriptor 1 gets that number, and with it what others print."""
        status = self._status()
        if status is None or status.st_nlink == 0:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            opened = os.fstat(self._descriptor)
            self._file = opened.st_dev, opened.st_ino
        return self._descriptor

    def _status(self) -> os.stat_result | None:
        """None if the file is not open here: a handler may have closed it, and its number may be another file's by now."""
        with suppress(OSError):
            status = os.fstat(self._descriptor)
            if (status.st_dev, status.st_ino) == self._file:
                return status
        return None

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def counted(self) -> Counter[str]:
        return Counter(self.lines())

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
