"""One worker process as the consumer sees it: give it messages, stop it for a look, kill it, learn how it ended.

`WorkerProcess` is the process, `PooledWorker` adds what the pool knows about it. `reap` collects processes that handlers
started and left behind: the consumer is the parent of its workers and inherits what they leave, and what nobody collects
stays in the process table for ever.
"""

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from unpoison.model.failure import Crash
from unpoison.model.message import Delivery
from unpoison.reporting.numbers import Durations, WorkerEnd
from unpoison.worker import wire
from unpoison.worker.marks import STACK_SIGNAL, Marks
from unpoison.workers.assignments import Assignments, BatchAssignments, LaneAssignments, PostMortem, Running
from unpoison.workers.interface import readable

_KNOWN: set[int] = set()
_SESSIONS: deque[int] = deque(maxlen=1000)

COLLECTING = threading.RLock()
"""Held while unknown processes are collected, and while a process is started until its pid is registered."""


def know(pid: int) -> None:
    """Register a process: the code that started it collects it. It leads a session of its own, as workers do."""
    with COLLECTING:
        _KNOWN.add(pid)
        _SESSIONS.append(pid)


def forget(pid: int) -> None:
    """No code waits for this process any more: when it ends, the reaper collects it."""
    with COLLECTING:
        _KNOWN.discard(pid)


def reap(*, everything: bool) -> None:
    """Collect ended processes that no other code waits for.

    With `everything` that is every unknown one: right where this process has no other children, as under `unpoison run` or as
    process 1. Otherwise only those of workers' sessions: an application's own subprocesses are its own business.
    """
    with COLLECTING, suppress(OSError):
        for pid in _children():
            with suppress(ChildProcessError):
                if _has_ended(pid) and pid not in _KNOWN and (everything or _session(pid) in _SESSIONS):
                    os.waitpid(pid, os.WNOHANG)


def _has_ended(pid: int) -> bool:
    """Looking at it does not collect it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def state_of(pid: int) -> str:
    """As the kernel says it: T is stopped, Z has ended. Empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


STOP_WITHIN = 0.1
"""Seconds to wait for a process to stop; one that has not by then is stuck."""

GONE_WITHIN = 5.0
"""Seconds to wait for a killed process to be gone; one in uninterruptible sleep is left behind and reaped later."""


_CRASHED = "Fatal Python error"
"""How faulthandler begins."""


class WorkerProcess:
    """One worker, seen from the consumer, which is its parent."""

    def __init__(self, pid: int, sock: socket.socket, marks: Marks, stack: int, log: int) -> None:
        self.pid, self.sock, self.marks, self._stack, self._log = pid, sock, marks, stack, log
        know(pid)
        self.pidfd = os.pidfd_open(pid)
        self.born = time.monotonic()
        self._status: int | None = None
        self._peak = 0
        self._asked_at = 0
        self.hung_up = False
        sock.setblocking(False)

    def said(self) -> Iterator[wire.FromWorker]:
        """What the worker has sent since the last call. `hung_up` is set once it can send nothing more."""
        while True:
            try:
                received = wire.receive(self.sock, wire.from_worker)
            except (BlockingIOError, msgspec.DecodeError, ValueError, RecursionError):  # garbage from a damaged worker
                return
            if received is None:
                self.hung_up = True
                return
            yield received[0]

    def tell(self, said: wire.ToWorker) -> wire.Sent:
        """Send without waiting: a worker that is stuck does not read, and must not block the consumer."""
        try:
            wire.send(self.sock, said)
        except BlockingIOError:
            return wire.Sent.NOT_NOW
        except OSError:
            return wire.Sent.NEVER
        return wire.Sent.YES

    def stand_still(self) -> bool:
        """Stop the process for a look at its marks. True once it certainly runs no further instruction."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGSTOP)
        until = time.monotonic() + STOP_WITHIN
        while time.monotonic() < until:
            state = state_of(self.pid)
            if state in ("T", "t"):
                return True
            if state in ("", "Z", "X"):
                return False
            time.sleep(0.0002)
        return False

    def ask_for_stack(self) -> None:
        """Have the worker write down where it is, even if it is stuck in C code. Waits a moment for it."""
        if self.hung_up:  # it has closed its descriptors: the stack would go to whatever has that number now
            return
        self._asked_at = size = os.fstat(self._stack).st_size
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, STACK_SIGNAL)
        self.go_on()
        until = time.monotonic() + STOP_WITHIN
        while time.monotonic() < until:
            time.sleep(0.001)
            before, size = size, os.fstat(self._stack).st_size
            if size == before > self._asked_at:  # it has written, and writes no more
                return

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
        if self._status is None and readable((self.pidfd,), wait):
            try:
                _, self._status, usage = os.wait4(self.pid, os.WNOHANG)
                self._peak = usage.ru_maxrss * 1024
            except ChildProcessError:  # other code in this process has reaped it
                self._status = 0
        return self._status is not None

    @property
    def was_killed(self) -> bool:
        """Whether a signal has ended it, its own or ours."""
        return os.WIFSIGNALED(self._status or 0)

    def autopsy(self, elapsed: float | None, *, was_stuck: bool = False) -> Crash:
        """Everything known about how it ended. If it was stuck, its stack is what it was asked for last."""
        status = self._status or 0
        by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return Crash(
            signal=None if by_signal is None else _signal_name(by_signal),
            exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            elapsed=elapsed,
            peak_rss=self._peak or None,
            stack=_read(self._stack, self._asked_at) if was_stuck else _read_crash(self._stack),
            log=_read_log(self._log),
            worker_age=time.monotonic() - self.born,
        )

    def close(self) -> None:
        """Let go of everything but the process itself."""
        forget(self.pid)
        self.sock.close()
        self.marks.close()
        for descriptor in (self.pidfd, self._stack, self._log):
            os.close(descriptor)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(descriptor: int, start: int = 0) -> str:
    return os.pread(descriptor, 16_000, start).decode("utf-8", "replace")


def _read_crash(descriptor: int) -> str:
    """What Python wrote down when it crashed; empty if it had no time to. Stacks that were asked for earlier stand before it."""
    last = max(0, os.fstat(descriptor).st_size - 64_000)
    _, begins, rest = os.pread(descriptor, 64_000, last).decode("utf-8", "replace").rpartition(_CRASHED)
    return (begins + rest)[:16_000] if begins else ""


def _read_log(descriptor: int) -> str:
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    return os.pread(descriptor, min(length, 64_000), 8).decode("utf-8", "replace")


def assignments_for(process: WorkerProcess, consumer: wire.Consumer, durations: Durations | None) -> Assignments:
    options = consumer.options
    if options.is_async or options.threads > 1:
        return LaneAssignments(process.marks, process.tell, durations, shares_a_thread=options.is_async)
    return BatchAssignments(process.marks, process.tell, durations, needs_delivery=consumer.needs_delivery)


@dataclass(eq=False)
class PooledWorker:
    """A worker as the pool sees it. `is_solo` workers run a single message and are then retired.

    `killed_idle`: it was killed while nothing ran in it. A message that it began in that very moment is not to blame.
    """

    process: WorkerProcess
    consumer: wire.Consumer
    durations: Durations | None = None
    assignments: Assignments = field(init=False)
    ready: bool = False
    uses: int = 0
    is_solo: bool = False
    retiring: bool = False
    put_back: set[str] = field(default_factory=set)
    """What its messages changed in it and was put back."""
    failing: set[str] = field(default_factory=set)
    """The messages that failed in it since the last success."""
    problem: str = ""
    late: Running | None = None
    killed_idle: bool = False
    given_at: float = 0.0
    leave_until: float = float("inf")

    def __post_init__(self) -> None:
        self.assignments = assignments_for(self.process, self.consumer, self.durations)

    @property
    def why_ended(self) -> WorkerEnd:
        """Of one that is gone, and was not told to stop."""
        if self.late is not None:
            return WorkerEnd.TIMEOUT
        return WorkerEnd.CRASH if self.process.was_killed else WorkerEnd.EXIT

    @property
    def is_able(self) -> bool:
        """Whether it can be given anything."""
        return self.ready and not self.retiring

    def give(self, deliveries: Sequence[Delivery]) -> bool:
        """False if it did not take them."""
        if not self.assignments.held():
            self.given_at = time.monotonic()
        sent = self.assignments.give(deliveries)
        if sent is wire.Sent.NEVER:
            self.retiring = True  # not killed: a handler may have closed the socket, and what runs may still end
        return sent is wire.Sent.YES

    def is_over(self) -> bool:
        """Whether it has ended, takes too long to leave, or can send nothing more and runs nothing."""
        if self.process.is_gone() or time.monotonic() > self.leave_until:
            return True
        return self.process.hung_up and not self.assignments.running()

    def end(self) -> bool:
        """Kill it, unless it is gone already. True once it certainly is."""
        self.killed_idle = self.killed_idle or (not self.process.is_gone() and not self.assignments.running())
        self.process.kill()
        return self.process.is_gone(GONE_WITHIN)

    def post_mortem(self) -> PostMortem:
        """What it leaves, once it is certainly gone. Its last messages may still be in the socket."""
        self.end()
        for said in self.process.said():
            if isinstance(said, wire.Failed):
                try:
                    self.assignments.heard(said)
                except ValueError:
                    continue  # an account of something it never had
            elif isinstance(said, wire.Broken):
                self.problem = said.text
        post_mortem = self.assignments.post_mortem()
        self.killed_idle = self.killed_idle and post_mortem.is_sound  # marks that were overwritten do not say that nothing ran
        return post_mortem
