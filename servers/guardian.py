"""What ends the servers of an owner that was killed with kill -9?

Run as a program with the owner's folder. Waits, without any polling, until the owner is gone; then ends what it has left behind.
"""

import os
import select
import sys
from pathlib import Path

from servers.owners import owners
from servers.processes import Process
from servers.starting import stop_all


def main(folder: Path) -> None:
    owner = next((each for each in owners(folder.parent) if each.folder == folder), None)
    if owner is None or owner.process is None:
        return
    _wait_for_the_end_of(owner.process)
    # In its own time the owner has removed the folder; then nothing is left to do.
    if folder.exists():
        stop_all(owner)


def _wait_for_the_end_of(process: Process) -> None:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    # Only now is it certain that the handle is the owner's and not that of somebody who got its id.
    if process.alive:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.poll()
    os.close(handle)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
