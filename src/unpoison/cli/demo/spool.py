"""What is the queue of the plain loop? A folder with one file for each message: what is in it survives any kill."""

from collections.abc import Sequence
from pathlib import Path


class Spool:
    """The queue of the plain loop. File names say the place in the line and the number of the order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill(self, bodies: Sequence[bytes]) -> None:
        self._folder.mkdir()
        for number, body in enumerate(bodies, 1):
            (self._folder / f"{number:08d}-{number}").write_bytes(body)

    def waiting(self) -> list[Path]:
        return sorted(self._folder.iterdir())

    def put_back(self, file: Path, place: int) -> Path:
        return file.rename(self._folder / f"{place:08d}-{order_of(file)}")


def order_of(file: Path) -> int:
    return int(file.name.partition("-")[2])
