"""The processes of a scene: which are there, and how does a promise start consumers, again and again, and hear what they say?

They are found by their environment, which every process inherits from its parent and keeps when that parent is gone.
"""

import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from unpoison.errors import UnpoisonError
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp
from unpoison.testing.isolation.diary import PATIENCE, Plan, current_plan, wait_until


def alive(token: str) -> list[int]:
    """All running processes of the scene, zombies left out."""
    return [pid for pid in _pids() if token.encode() in _read(pid, "environ") and state(pid) not in ("Z", "X", "")]


def state(pid: int) -> str:
    """R, S, T, Z … as the kernel says; empty if there is no such process."""
    return (_read(pid, "stat").rpartition(b")")[2].split() or [b""])[0].decode()


def parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def children(pid: int) -> list[int]:
    return [child for child in _pids() if parent(child) == pid]


def workers_of(consumer: int) -> list[int]:
    """Each leads a session of its own."""
    return [child for child in children(consumer) if _session(child) == child and state(child) != "Z"]


def template_of(consumer: int) -> int:
    """It shares the session of its consumer. 0 if there is none.

    So does a worker that has just been forked. The oldest one counts: process ids begin again at the bottom after the highest. Of
    two that were started in one tick it is the lower id.
    """
    candidates = [
        child
        for child in children(consumer)
        if b"unpoison.programs.template" in _read(child, "cmdline") and _session(child) != child and state(child) != "Z"
    ]
    return min(sorted(candidates), key=_started_at, default=0)


def zombies_of(pid: int) -> list[int]:
    return [child for child in children(pid) if state(child) == "Z"]


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def peak_memory(pid: int) -> int:
    """Bytes of memory that the process has had at most."""
    return _status(pid, "VmHWM:") * 1024


def memory(pid: int) -> int:
    """Bytes of memory that the process has."""
    return _status(pid, "VmRSS:") * 1024


def expect_nobody(token: str) -> None:
    """Nothing of the scene runs any more; what was killed a moment ago gets a moment to be gone."""
    wait_until(lambda: not alive(token), lambda: f"Left running: {[_told(pid) for pid in alive(token)]}", 5.0)


def expect_no_zombie(consumer: int) -> None:
    wait_until(lambda: not zombies_of(consumer), lambda: f"Process {consumer} has not collected {zombies_of(consumer)}", 5.0)


def expect_children(consumer: int, count: int, patience: float = 10.0) -> None:
    """Exactly so many processes below the consumer; a worker that is being replaced gets a moment for it."""
    wait_until(
        lambda: len(children(consumer)) == count, lambda: f"Not {count}: {[_told(pid) for pid in children(consumer)]}", patience
    )


def end_all(token: str) -> None:
    for pid in alive(token):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _status(pid: int, field: str) -> int:
    lines = _read(pid, "status").decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def _started_at(pid: int) -> int:
    """In ticks since the system started."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[19]) if fields else sys.maxsize


def _told(pid: int) -> str:
    return f"{pid} (parent {parent(pid)}, {state(pid)}): {_read(pid, 'cmdline').replace(bytes(1), b' ').decode()}"


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())  # noqa: PTH208 - names are all that is needed


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


# Consumers, each in a process of its own.


class LogLine(msgspec.Struct, frozen=True):
    """One line of a consumer's log."""

    level: str
    event: str
    message: str
    consumer: int


class ConsumerProcess:
    """A consumer with its template and workers. Leaving the block ends it and checks that no process is left."""

    def __init__(self, plan: Plan, *, until_empty: bool = False, prefix: Sequence[str] = ()) -> None:
        self._plan = plan
        self._log = Path(plan.folder) / f"log-{secrets.token_hex(4)}"
        arguments = ["--until-empty"] if until_empty else []
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*prefix, sys.executable, "-m", "unpoison.testing.isolation.processes", *arguments],
                env=plan.as_environment(),
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait(self, patience: float | None = PATIENCE) -> int:
        """Its exit code; below zero the signal that ended it."""
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The consumer did not end within {patience:g} s. Its log: {self.text()[-4000:]}") from None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """As a deploy does it."""
        self.send(signal.SIGTERM)
        assert self.wait() == 0, self.text()[-4000:]

    def is_running(self) -> bool:
        return self._process.poll() is None

    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def log(self) -> list[LogLine]:
        """What it said; a line that is being written at this moment is left out."""
        lines = [line for line in self.text().splitlines() if line.startswith('{"level"') and line.endswith("}")]
        return [msgspec.json.decode(line, type=LogLine) for line in lines]

    def said(self, *words: str) -> list[LogLine]:
        return [line for line in self.log() if all(word in line.message for word in words)]

    def wait_for_line(self, *words: str) -> LogLine:
        wait_until(lambda: self.said(*words), lambda: f"Nothing was said about {words}: {self.text()[-4000:]}")
        return self.said(*words)[0]

    def workers(self) -> list[int]:
        return workers_of(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.is_running():
            if kind is None:
                self.stop()
            else:
                self.send(signal.SIGKILL)
                self._process.wait(PATIENCE)


UNTIL_EMPTY_WITHIN = 120.0
"""Seconds. A consumer that waits until nothing is left waits for the others too: for each one that is killed, until the broker
hands out its messages again."""


class Supervisor(threading.Thread):
    """Starts a consumer again at once whenever it ends, as systemd or Kubernetes do, until there is nothing to do or it is
    no longer wanted."""

    def __init__(self, plan: Plan, restarts: int, *, until_empty: bool = True) -> None:
        super().__init__(daemon=True)
        self._plan, self._restarts, self._until_empty = plan, restarts, until_empty
        self.consumers: list[ConsumerProcess] = []
        self.problem = ""
        self.is_wanted = True

    def run(self) -> None:
        try:
            self._supervise()
        except BaseException as error:  # told by the thread that waits
            self.problem = f"{type(error).__name__}: {error}"

    def finish(self) -> None:
        """Return once it has ended; what went wrong is raised here."""
        self.join()
        if self.problem:
            raise AssertionError(self.problem)

    def _supervise(self) -> None:
        while True:
            consumer = ConsumerProcess(self._plan, until_empty=self._until_empty)
            self.consumers.append(consumer)
            with consumer:  # one that does not end is killed: it would consume beside the tests to come
                code = consumer.wait(UNTIL_EMPTY_WITHIN if self._until_empty else None)
            if code == 0:
                if self._until_empty or not self.is_wanted:
                    return
                continue
            was_killed = code == -signal.SIGKILL or bool(consumer.said("was killed by SIGKILL before the app was ready"))
            if not was_killed or len(self.consumers) > self._restarts:
                how = "too often" if was_killed else f"with exit code {code}"
                raise AssertionError(f"The consumer ended {how}: {consumer.text()[-4000:]}")


# What such a process does: the same as `unpoison run`, with its log as JSON lines.
# python -m unpoison.testing.isolation.processes [--until-empty]


class LogLines(logging.Handler):
    """Writes what is logged as JSON lines."""

    def __init__(self, descriptor: int = 2) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        line = LogLine(record.levelname, getattr(record, "event", ""), record.getMessage(), os.getpid())
        os.write(self._descriptor, msgspec.json.encode(line) + b"\n")


def main() -> int:
    logging.basicConfig(level=logging.DEBUG, handlers=[LogLines()])
    scene = current_plan()
    for _ in range(scene.also.get("descriptors", 0)):
        os.open(os.devnull, os.O_RDONLY)
    try:
        app = RunnableApp.from_reference(scene.app, dict, scene.also.get("start_timeout", 60.0))
        Run([app], is_dedicated=True).serve(until_empty="--until-empty" in sys.argv)
    except UnpoisonError as error:
        logging.getLogger("unpoison").critical("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
