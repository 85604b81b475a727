"""Who has started which servers, and who ends them when their owner no longer can?

    <state>/<owner>/<server>/record.json     what it is and which processes belong to it
    <state>/<owner>/<server>/…               its data and its logs

An owner is a process. Three things end its servers, whichever comes first: the owner itself; a guardian, a small process that
waits for the owner's death (kill -9 included); the next start of anything, which looks for owners that are no more. The owner
`kept` is nobody: those run until `python -m servers stop`.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from servers.errors import ServerFailed
from servers.files import locked_if_free, make_folder, read_json, write_json
from servers.processes import Process, kill_hard, launch

PROJECT = Path(__file__).parent.parent
KEPT = "kept"


def state_folder() -> Path:
    """Where the servers of this user keep everything. Not in the home folder: an unprivileged server must be able to reach it."""
    folder = Path(tempfile.gettempdir()) / f"unpoison-servers-{os.getuid()}"
    make_folder(folder, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ServerFailed(f"{folder} belongs to somebody else. Remove it, or set TMPDIR to a folder of your own.")
    return folder


@dataclass(frozen=True)
class Owner:
    """A process (None: nobody) and the folder with its servers."""

    folder: Path
    process: Process | None

    @classmethod
    def of(cls, process: Process, state: Path | None = None) -> "Owner":
        return cls((state or state_folder()) / f"{process.pid}.{process.started}", process)

    @classmethod
    def own(cls, state: Path | None = None) -> "Owner":
        """This process."""
        return cls.of(Process.own(), state)

    @classmethod
    def nobody(cls, state: Path | None = None) -> "Owner":
        return cls((state or state_folder()) / KEPT, None)

    @property
    def state(self) -> Path:
        return self.folder.parent

    @property
    def is_gone(self) -> bool:
        return self.process is not None and not self.process.alive

    def move_in(self) -> None:
        """Make the folder, clear away what dead owners have left, and have somebody watch over this one."""
        clear_stale(self.state)
        make_folder(self.folder, exist_ok=True)
        if self.process is not None:
            self._guard()

    def _guard(self) -> None:
        with locked_if_free(self.folder / "guardian.lock") as free:
            if not free:
                return  # another process is just doing it
            known = read_json(self.folder / "guardian.json")
            if known and Process(**known).alive:
                return
            command = [sys.executable, "-m", "servers.guardian", str(self.folder)]
            guardian = launch(command, folder=PROJECT, log=self.folder / "guardian.log", environment=os.environ)
            write_json(self.folder / "guardian.json", asdict(guardian))

    def end(self) -> None:
        """Kill every recorded process of this owner and remove the folder. stop_all() is kinder."""
        kill_hard(recorded_processes(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)


def recorded_processes(folder: Path) -> list[Process]:
    records = [read_json(path) for path in folder.glob("*/record.json")]
    return [Process(*known) for record in records if record for known in record["processes"].values()]


def owners(state: Path) -> Iterator[Owner]:
    """Everybody who has a folder here."""
    for folder in state.iterdir():
        pid, dot, started = folder.name.partition(".")
        if folder.name == KEPT:
            yield Owner(folder, None)
        elif folder.is_dir() and pid.isdigit() and dot:
            yield Owner(folder, Process(int(pid), started))


def clear_stale(state: Path) -> None:
    """End what belongs to owners that are no more. Recorded ids and start times only; nothing is searched for by name."""
    with locked_if_free(state / "clearing.lock") as free:
        for owner in owners(state) if free else ():
            if owner.is_gone:
                owner.end()
