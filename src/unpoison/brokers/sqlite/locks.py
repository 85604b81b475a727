"""Which processes lock a SQLite file just now?

Asked of the kernel. To try the locks would need the right to write; to open the files that hold them would, when they are closed
again, drop the locks that other connections of this very process have there.
"""

from collections.abc import Iterator
from pathlib import Path

_WRITER = range(120, 121)
_READERS = range(123, 128)
"""Bytes of the file beside the log that SQLite locks; fixed by its file format."""


def writers(path: str) -> set[int]:
    """Processes with a write transaction open. Empty where the system does not tell."""
    return set(_holders(path, _WRITER))


def readers(path: str) -> set[int]:
    """Processes with a read transaction open. Empty where the system does not tell."""
    return set(_holders(path, _READERS))


def command_of(pid: int) -> str:
    """What the process is called; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _holders(path: str, wanted: range) -> Iterator[int]:
    try:
        # Not the device as well: on some file systems the kernel's list and stat() do not agree about it.
        inode = Path(f"{path}-shm").stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()
        if (
            len(words) != 8 or words[1] != "POSIX" or int(words[5].rpartition(":")[2]) != inode
        ):  # those who wait have one word more
            continue
        first, last = int(words[6]), wanted[-1] if words[7] == "EOF" else int(words[7])
        if first <= wanted[-1] and last >= wanted[0]:
            yield int(words[4])
