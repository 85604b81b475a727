"""Is that process still the one we started, and how is it ended?

A process is known by its id *and* the moment it started: an id alone is given to somebody else sooner or later, and must never be
killed then. Zombies count as gone: they hold nothing, and whoever has to collect them may be busy. But not while one of their
threads is still ending: until then their ports are taken, and the next server on such a port would fail to start.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from servers.errors import ServerFailed

LAUNCHER = Path(__file__).with_name("launch.py")


@dataclass(frozen=True)
class Process:
    """One process of this machine, of this boot."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """The process that has this id now; None when there is none, or only a zombie without threads."""
        facts = _stat(pid)
        return None if facts is None else cls(pid, f"{_boot()}-{facts.started}")

    @classmethod
    def own(cls) -> "Process":
        process = cls.of(os.getpid())
        if process is None:
            raise ServerFailed("cannot read /proc/self/stat, which says since when this process runs; /proc is needed")
        return process

    @property
    def alive(self) -> bool:
        return Process.of(self.pid) == self

    @property
    def condition(self) -> str:
        """`runs`, `stands still` after a SIGSTOP, or `gone`."""
        facts = _stat(self.pid)
        if facts is None or not self.alive:
            return "gone"
        return "stands still" if facts.state in "Tt" else "runs"

    def signal(self, number: signal.Signals) -> None:
        """Does nothing when the process is gone, or when its id belongs to somebody else by now."""
        # The pidfd holds on to whoever has the id at this moment; if that is our process, the signal cannot reach another.
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)

    def family(self) -> "list[Process]":
        """The process and everything below it, parents first; empty when it is gone."""
        if not self.alive:
            return []
        children: dict[int, list[int]] = {}
        for pid in _all_pids():
            if facts := _stat(pid):
                children.setdefault(facts.parent, []).append(pid)
        found, waiting = [self], [self.pid]
        while waiting:
            for child in children.get(waiting.pop(), ()):
                if process := Process.of(child):
                    found.append(process)
                    waiting.append(child)
        return found


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    started: str


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may hold anything, also spaces and parentheses.
    state, parent, *rest = text.rpartition(")")[2].split()
    threads, started = int(rest[15]), rest[17]
    # The first thread of a killed process can be a zombie while others still wait for the disk, with all files and ports open.
    return None if state in "ZX" and threads <= 1 else _Stat(state, int(parent), started)


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - a thousand names, no paths


@cache
def _boot() -> str:
    # Start times count from the boot: after a restart of the machine the same number may come again.
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    return "boot"


def launch(
    command: list[str], *, folder: Path, log: Path, environment: Mapping[str, str], user: tuple[int, int] | None = None
) -> Process:
    """Start a server in the background, as `user` (uid, gid) if given. Returns at once; whether it works its log tells."""
    uid, gid = user or (None, None)
    wanted = {
        "command": command,
        "folder": str(folder),
        "log": str(log),
        "environment": dict(environment),
        "uid": uid,
        "gid": gid,
    }
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(wanted)]
    # A session of its own: Ctrl-C between the fork and setsid must not reach the child either.
    done = subprocess.run(launcher, stdout=subprocess.PIPE, text=True, check=True, start_new_session=True)
    pid = int(done.stdout)
    # A command that failed at once is known by an impossible start time: it is gone and nobody else is ever taken for it.
    return Process.of(pid) or Process(pid, "gone")


def wait_until_gone(processes: Iterable[Process], seconds: float) -> bool:
    """True when all of them are gone before the time is over."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if process.alive]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if process.alive]
    return not left


def kill_hard(processes: Iterable[Process]) -> None:
    """kill -9 of each process and of all below it, as if the power of the server had failed."""
    doomed = [each for process in processes for each in process.family()]
    for process in doomed:
        process.signal(signal.SIGKILL)
    if not wait_until_gone(doomed, 10):
        left = ", ".join(str(process.pid) for process in doomed if process.alive)
        raise ServerFailed(
            f"process {left} is still there 10 s after kill -9; it probably hangs in the kernel. Look at: ps -l {left}"
        )
