"""Who may read and write a SQLite file, and what lies beside it?"""

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from unpoison.port.broker import Finding

NAMES = ("not-writable", "readable-by-others")


def findings_of(path: str) -> Iterator[Finding]:
    file = Path(path).absolute()
    beside = [Path(f"{file}{end}") for end in ("-wal", "-shm", "-owners")]
    there = [each for each in (file, *beside) if each.exists()]
    yield from _of_writing([file.parent, *there])
    yield from _of_reading(file, there)


def _of_writing(needed: list[Path]) -> Iterator[Finding]:
    refused = [each for each in needed if not os.access(each, os.W_OK)]
    if refused:
        yield Finding(
            "not-writable",
            f"This user ({_name(os.geteuid())}) may not write {', '.join(map(str, refused))}. Nothing can be published or "
            f"consumed by it; nothing is lost.",
            _way_to_write(refused),
            stops=True,
        )


def _way_to_write(refused: list[Path]) -> str:
    names = " ".join(quote(str(each)) for each in refused)
    if os.statvfs(refused[0]).f_flag & os.ST_RDONLY:
        return f"The disk is mounted so that it can only be read. As root:\nmount -o remount,rw {quote(_mount_of(refused[0]))}"
    owners = {each.stat().st_uid for each in refused}
    if owners == {os.geteuid()}:
        return f"They are this user's own; allow it:\nchmod u+w {names}"
    others = ", ".join(sorted(_name(owner) for owner in owners - {os.geteuid()}))
    return f"Run unpoison as the user {others}, or give them to this one, as root:\nchown {os.geteuid()} {names}"


def _of_reading(file: Path, there: list[Path]) -> Iterator[Finding]:
    """Messages may hold what is nobody else's business; and who can open a lock file can hold its lock."""
    if not all(folder.stat().st_mode & stat.S_IXOTH for folder in file.parents):
        return
    locks = [each for folder in there if folder.is_dir() and os.access(folder, os.R_OK) for each in folder.iterdir()]
    exposed = [each for each in (*there, *locks) if each.stat().st_mode & stat.S_IROTH]
    if exposed:
        modes = ", ".join(f"{each} ({stat.S_IMODE(each.stat().st_mode):04o})" for each in exposed)
        yield Finding(
            "readable-by-others",
            f"Every user of this machine can read {modes}: the messages, or the locks, which they could keep from the next "
            f"consumer. What unpoison makes itself only its own user can read; what was there keeps its mode.",
            f"Unless other users work with the file:\nchmod o= {' '.join(quote(str(each)) for each in exposed)}",
        )


def _name(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name}, id {user}"
    except KeyError:
        return f"id {user}"


def _mount_of(path: Path) -> str:
    return str(next(each for each in (path, *path.parents) if each.is_mount()))
