"""The plain loop that gets the same messages: the consumer that most people write first, in a process of its own.

It takes the first message, decodes it, calls the same handler, removes the message if that worked and puts it at the end of
the line if it raised. The queue is a folder with one file for each message, so it survives any kill; the process has the same
memory limit as unpoison's workers.

    python -m unpoison.cli.demo.plain_loop FOLDER SUPERVISOR_PID
"""

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from unpoison.cli.demo.shop import MEMORY, Order, record, ship
from unpoison.worker.worker_process import die_with


class Spool:
    """The queue of the plain loop. File names say the place in the line and the number of the order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, bodies: Sequence[bytes]) -> None:
        self.folder.mkdir()
        for number, body in enumerate(bodies, 1):
            (self.folder / f"{number:08d}-{number}").write_bytes(body)

    def waiting(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def put_back(self, file: Path, place: int) -> Path:
        return file.rename(self.folder / f"{place:08d}-{order_of(file)}")


def order_of(file: Path) -> int:
    return int(file.name.partition("-")[2])


def consume(spool: Spool) -> None:
    line = spool.waiting()
    place = int(line[-1].name.partition("-")[0]) if line else 0
    while line:
        file = line.pop(0)
        try:
            ship(Order(**json.loads(file.read_bytes())))
        except Exception:  # as plain loops do: whatever it is, try it again later
            place += 1
            record("requeue", order_of(file))
            line.append(spool.put_back(file, place))
        else:
            file.unlink()


def main() -> None:
    folder, supervisor = Path(sys.argv[1]), int(sys.argv[2])
    die_with(supervisor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    consume(Spool(folder))


if __name__ == "__main__":
    main()
