"""Which processes belong to a scene, and what are they?

They are found by their environment, which every process inherits from its parent and keeps when that parent is gone.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from unpoison.testing.isolation.diary import wait_until


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
    """It shares the session of its consumer. 0 if there is none."""
    for child in children(consumer):
        if b"unpoison.programs.template" in _read(child, "cmdline") and _session(child) != child and state(child) != "Z":
            return child
    return 0


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
