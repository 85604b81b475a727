"""What machine is this, and how much of it do others use right now?"""

import os
import platform
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

TICKS = os.sysconf("SC_CLK_TCK")


def described(folder: Path) -> str:
    """What a reader must know to compare figures. The file system counts because syncing to it does."""
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return (
        f"{_processor()}, {os.cpu_count()} cores; {system}, {_file_system(folder)}; "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, msgspec {msgspec.__version__}"
    )


def busy() -> float:
    """Seconds that all cores together have worked since boot. Time taken by other guests of the host counts as work."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = _ticks()
    return (user + nice + system + irq + softirq + steal) / TICKS


def stolen() -> float:
    """Seconds that a core had work but the host gave its time to other guests."""
    return _ticks()[7] / TICKS


def _ticks() -> list[int]:
    return [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


servers: list[int] = []
"""Servers that a benchmark has started. What they and their children use is no disturbance, though they are not our children."""


def used_by_us() -> float:
    """CPU seconds of this process, of its children, those still running included, and of the servers that it needs."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    living = sum(_used_by(pid) for pid in _descendants(os.getpid()))
    served = sum(used_by_tree(pid) for pid in servers)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + living + served


def used_by_tree(pid: int) -> float:
    """CPU seconds of another process and of its children, to a hundredth."""
    return _used_by(pid) + sum(_used_by(child) for child in _descendants(pid))


def _used_by(pid: int) -> float:
    """CPU seconds of a process and of the children it has waited for; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS


def _descendants(pid: int) -> Iterator[int]:
    try:
        children = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from _descendants(child)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _file_system(folder: Path) -> str:
    """The type of the file system that holds the folder, as the kernel names it."""
    best, kind = "", "unknown file system"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, rest = line.partition(" - ")
        point = mount.split()[4]
        if folder.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind
