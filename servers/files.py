"""How do several processes share one folder without treading on each other?"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time. The lock goes with its holder, also when that is killed."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Like locked, but gives False instead of waiting."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def make_folder(path: Path, *, exist_ok: bool = False) -> None:
    """A folder that others may pass through, whatever the umask says: a server may run as somebody else."""
    path.mkdir(exist_ok=exist_ok)
    if path.stat().st_uid == os.getuid():
        path.chmod(0o711)


def write_json(path: Path, value: Any) -> None:
    """All of it or nothing: a reader never sees half a file, whenever the writer is killed."""
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(value, indent=1), encoding="utf-8")
    fresh.replace(path)


def read_json(path: Path) -> Any:
    """None when the file is not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
