"""Which processes lock a SQLite file just now?

Asked of the kernel. To try the locks would need the right to write; to open the files that hold them would, when they are closed
again, drop the locks that other connections of this very process have there.
"""

import pwd
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


def holders(lock: str) -> set[int]:
    """Living processes that keep this lock file locked: who took the lock, or, if that one is gone, who has the file open still.

    Empty where the system does not tell, or not to this user.
    """
    taken = {int(words[4]) for words in _locks("FLOCK", lock)}
    alive = {pid for pid in taken if command_of(pid)}
    return alive or ({pid for pid in _processes() if lock in _opened(pid)} if taken else set())


def command_of(pid: int) -> str:
    """What the process is called; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def user_of(pid: int) -> str:
    """Who runs the process; empty if it is gone."""
    try:
        number = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _processes() -> Iterator[int]:
    return (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())


def _opened(pid: int) -> set[str]:
    try:
        return {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # it is gone, or another user's
        return set()


def _holders(path: str, wanted: range) -> Iterator[int]:
    for words in _locks("POSIX", f"{path}-shm"):
        first, last = int(words[6]), wanted[-1] if words[7] == "EOF" else int(words[7])
        if first <= wanted[-1] and last >= wanted[0]:
            yield int(words[4])


def _locks(kind: str, path: str) -> Iterator[list[str]]:
    """The kernel's lines about locks of this file."""
    try:
        # Not the device as well: on some file systems the kernel's list and stat() do not agree about it.
        inode = Path(path).stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()
        if len(words) == 8 and words[1] == kind and int(words[5].rpartition(":")[2]) == inode:  # who waits has one word more
            yield words
