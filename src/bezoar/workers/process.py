"""How does the consumer handle a worker's process: talk to it, stop it for a look, kill it, and learn how it ended?"""

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from bezoar.failure import Crash
from bezoar.workers import reaping, wire
from bezoar.workers.marks import STACK_SIGNAL, Marks

STOP_WITHIN = 0.1
"""Seconds to wait for a process to stand still; one that does not by then is beyond talking to."""

GONE_WITHIN = 5.0
"""Seconds to wait for a killed process to be gone; one in uninterruptible sleep is left behind and reaped later."""


class WorkerProcess:
    """One worker, seen from the consumer, which is its parent."""

    def __init__(self, pid: int, sock: socket.socket, marks: Marks, stack: int, log: int) -> None:
        self.pid, self.sock, self.marks, self._stack, self._log = pid, sock, marks, stack, log
        reaping.know(pid)
        self.pidfd = os.pidfd_open(pid)
        self.born = time.monotonic()
        self._status: int | None = None
        self._peak = 0
        self.hung_up = False
        sock.setblocking(False)

    def said(self) -> Iterator[wire.FromWorker]:
        """What the worker has said since it was last listened to. `hung_up` is set once it will say nothing more."""
        while True:
            try:
                received = wire.receive(self.sock, wire.from_worker)
            except (BlockingIOError, msgspec.DecodeError, ValueError):  # garbage from a damaged worker says nothing
                return
            if received is None:
                self.hung_up = True
                return
            yield received[0]

    def tell(self, said: wire.ToWorker) -> bool:
        """False if the worker can no longer be reached."""
        try:
            self.sock.setblocking(True)
            wire.send(self.sock, said)
        except OSError:
            return False
        finally:
            self.sock.setblocking(False)
        return True

    def stand_still(self) -> bool:
        """Stop the process for a look at its marks. True once it certainly runs no further instruction."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGSTOP)
        until = time.monotonic() + STOP_WITHIN
        while time.monotonic() < until:
            state = self._state()
            if state in ("T", "t"):
                return True
            if state in ("", "Z", "X"):
                return False
            time.sleep(0.0002)
        return False

    def ask_for_stack(self) -> None:
        """Have the worker write down where it is, even if it is stuck in C code. Waits a moment for it."""
        before = os.fstat(self._stack).st_size
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, STACK_SIGNAL)
        self.go_on()
        until = time.monotonic() + STOP_WITHIN
        while os.fstat(self._stack).st_size == before and time.monotonic() < until:
            time.sleep(0.001)

    def go_on(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGCONT)

    def kill(self) -> None:
        """End the process and everything it has started in its session."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def is_gone(self, wait: float = 0.0) -> bool:
        """True once the process has ended and its end is on record. Its shared memory may be trusted only then."""
        if self._status is None and select.select([self.pidfd], [], [], wait)[0]:
            try:
                _, self._status, usage = os.wait4(self.pid, os.WNOHANG)
                self._peak = usage.ru_maxrss * 1024
            except ChildProcessError:  # somebody else in this process has reaped it
                self._status = 0
        return self._status is not None

    def autopsy(self, elapsed: float | None) -> Crash:
        """Everything known about how it ended."""
        status = self._status or 0
        by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return Crash(
            signal=None if by_signal is None else _signal_name(by_signal),
            exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            elapsed=elapsed,
            peak_rss=self._peak or None,
            stack=_read(self._stack),
            log=_read_log(self._log),
            worker_age=time.monotonic() - self.born,
        )

    def close(self) -> None:
        """Let go of everything but the process itself."""
        reaping.forget(self.pid)
        self.sock.close()
        self.marks.close()
        for descriptor in (self.pidfd, self._stack, self._log):
            os.close(descriptor)

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(descriptor: int) -> str:
    length = os.fstat(descriptor).st_size
    return os.pread(descriptor, min(length, 16_000), 0).decode("utf-8", "replace")


def _read_log(descriptor: int) -> str:
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    return os.pread(descriptor, min(length, 64_000), 8).decode("utf-8", "replace")
