"""The store: a folder in which each file is a message. Other brokers have a client library in this place.

The name of a file says from when it can be received, how often it was, and which message it is. To rename it is to receive it,
keep it or give it back, and of two processes that try only one can.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from unpoison.port.copying.ids import new_letter_id


class File(NamedTuple):
    """What the name of a file says."""

    name: str
    visible_at: float
    received: int
    id: str


class Queue:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def files(self) -> list[File]:
        """All messages, the oldest first."""
        names = [path.name for path in self.path.iterdir()]
        return sorted((read_name(name) for name in names if not name.startswith(".")), key=lambda file: file[1:])

    def has_one(self) -> bool:
        """Whether a message can be received now."""
        now = time.time()
        return any(read_name(path.name).visible_at <= now for path in self.path.iterdir() if not path.name.startswith("."))

    def send(self, data: bytes, delay: float = 0.0, id_: str | None = None) -> str:
        """Store a message; it is on disk when this returns."""
        id_ = id_ or new_letter_id("m")
        hidden = self.path / f".{id_}"
        with hidden.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(self.path / name_of(time.time() + delay if delay > 0 else 0.0, 0, id_))
        return id_

    def receive(self, limit: int, visibility: float) -> list[File]:
        """Take messages that can be had now. For so many seconds nobody else can."""
        taken: list[File] = []
        now = time.time()
        for file in self.files():
            if len(taken) == limit or file.visible_at > now:
                break
            if (name := self.rename(file.name, now + visibility, file.received + 1, file.id)) is not None:
                taken.append(read_name(name))
        return taken

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def rename(self, old: str, visible_at: float, received: int, id_: str) -> str | None:
        """The new name; None if another process has the message by now."""
        new = name_of(visible_at, received, id_)
        try:
            (self.path / old).rename(self.path / new)
        except FileNotFoundError:
            return None
        return new

    def delete(self, name: str) -> bool:
        """False if another process has the message by now."""
        with suppress(FileNotFoundError):
            (self.path / name).unlink()
            return True
        return False


def name_of(visible_at: float, received: int, id_: str) -> str:
    return f"{int(visible_at * 1000):014d}.{received}.{id_}"


def read_name(name: str) -> File:
    visible_at, received, id_ = name.split(".", 2)
    return File(name, int(visible_at) / 1000, int(received), id_)
