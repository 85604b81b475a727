"""What does a plain loop do with the same messages? The consumer that everybody writes first, in a process of its own.

It takes the first message, decodes it, calls the same handler, removes it if that worked and puts it back at the end of the
line if it raised. The queue is a folder with one file for each message, so what is in it survives any kill; the process has
the same limit of memory as unpoison's workers.

    python -m unpoison.cli.demo.plain_loop FOLDER SUPERVISOR_PID
"""

import json
import resource
import sys
from pathlib import Path

from unpoison.cli.demo.ledger import Ledger
from unpoison.cli.demo.shop import MEMORY, Order, ship
from unpoison.cli.demo.spool import Spool, order_of
from unpoison.worker.worker_process import die_with


def consume(spool: Spool, ledger: Ledger) -> None:
    line = spool.waiting()
    place = int(line[-1].name.partition("-")[0]) if line else 0
    while line:
        file = line.pop(0)
        try:
            ship(Order(**json.loads(file.read_bytes())))
        except Exception:  # as plain loops do: whatever it is, try it again later
            place += 1
            ledger.write("requeue", order_of(file))
            line.append(spool.put_back(file, place))
        else:
            file.unlink()


def main() -> None:
    folder, supervisor = Path(sys.argv[1]), int(sys.argv[2])
    die_with(supervisor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    consume(Spool(folder), Ledger.of_this_process())


if __name__ == "__main__":
    main()
