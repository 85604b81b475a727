"""What is a server for the tests, and how is it started, killed, started again and stopped?

Everything about a running one is in its folder (record.json): any process that knows the folder can do anything with the server,
and nothing depends on the process that has started it. An entry for another kind of server is a subclass that answers the
questions that stand first in Server.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.errors import ServerFailed, ServerMissing
from servers.files import locked, make_folder, read_json, write_json
from servers.places import Place, unprivileged
from servers.ports import free_port, on_record
from servers.processes import Process, kill_hard, launch, wait_until_gone


@dataclass(frozen=True)
class Entry:
    """One server that the tests know."""

    name: str
    variable: str
    """The environment variable with the address of a server that is there already."""
    place: Place
    make: "type[Server]"
    ports: tuple[str, ...] = ("main",)
    behind: str | None = None
    """The name of the server that this one stands in front of."""


class Server:
    """One instance. Without a folder it is somebody else's, the one in `addresses`: used as it is and never stopped."""

    stop_signal = signal.SIGTERM
    ready_within = 60.0
    leaves_nothing_when_killed = False
    """True: no orderly stop is needed before its data is thrown away."""

    def __init__(self, entry: Entry, folder: Path | None = None, *, addresses: Mapping[str, str] | None = None) -> None:
        self.entry = entry
        self.addresses = addresses or {}
        self.given = None if folder else self.addresses[entry.variable]
        self._folder = folder

    @classmethod
    def create(cls, entry: Entry, folder: Path, *, upstream: str | None = None) -> "Server":
        """A new one with ports of its own; start() starts it."""
        make_folder(folder)
        with locked(folder.parent.parent / "ports.lock"):
            taken = on_record(folder.parent.parent)
            ports = {name: free_port(taken) for name in entry.ports}
            record = {"name": entry.name, "ports": ports, "upstream": upstream, "settings": {}, "processes": {}, "in force": {}}
            write_json(folder / "record.json", record)
        server = entry.make(entry, folder)
        server.hand_over(folder)
        return server

    # The questions that every entry answers.

    @property
    def url(self) -> str:
        """The address that goes into an App."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make what must be there before the first start."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Write the configuration file, before every start."""

    def commands(self) -> dict[str, list[str]]:
        """What to run, in this order. The last one is called `server`."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}

    def answers(self) -> bool:
        """Can it be used now?"""
        raise NotImplementedError

    def server_process(self) -> Process | None:
        """The process that gets the stop signal; None while there is none."""
        return self.processes.get("server")

    def version(self) -> str:
        """What the running server says it is."""
        raise NotImplementedError

    def fresh(self) -> str:
        """An address on this server with nothing in it, for one test."""
        raise NotImplementedError

    def in_force(self) -> dict[str, str]:
        """The settings of the running server that a test could change for others, as they are now."""
        return {}

    def restore(self) -> None:
        """Back to the settings and the health of its last start. Its data stays."""
        self.kill_hard()
        self.start()

    # What everybody can do with it.

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ServerMissing(
                f"{self.entry.name} is the one given in {self.entry.variable}, and a server that was not started here is neither "
                f"stopped nor changed. Unset {self.entry.variable} to have a private one."
            )
        return self._folder

    @property
    def port(self) -> int:
        return self.ports["main"]

    @property
    def ports(self) -> dict[str, int]:
        return dict(self._record()["ports"])

    @property
    def upstream(self) -> str:
        return str(self._record()["upstream"])

    @property
    def settings(self) -> dict[str, str]:
        """What was asked for at its starts until now."""
        return dict(self._record()["settings"])

    @property
    def processes(self) -> dict[str, Process]:
        return {name: Process(*known) for name, known in self._record()["processes"].items()}

    @property
    def running(self) -> bool:
        process = self.server_process()
        return process is not None and process.alive

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start it, also again after stop() or kill_hard(): same port, same data. Returns when it answers.

        `settings` go into its configuration file, on top of those of earlier starts.
        """
        record = self._record()
        record["settings"] |= settings or {}
        self._write(record)
        if not (self.folder / "prepared").exists():
            self.prepare()
            (self.folder / "prepared").touch()
        self.configure(record["settings"])
        for name, command in self.commands().items():
            known = self.processes.get(name)
            if known is None or not known.alive:
                self._launch(name, command)
        self._wait_until_ready()
        self.accept()

    def accept(self) -> None:
        """Its present settings are those it is expected to have."""
        record = self._record()
        record["in force"] = self.in_force()
        self._write(record)

    def changes(self) -> dict[str, str]:
        """What is no longer as it was at the last start, each with its value then and now. Of a given server nothing is known."""
        if self.given:
            return {}
        process = self.server_process()
        if process is None or process.condition != "runs":
            return {"process": process.condition if process else "gone"}
        before, now = self._record()["in force"], self.in_force()
        return {
            name: f"{before.get(name)!r}, now {now.get(name)!r}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        }

    def stop(self) -> None:
        """An orderly stop; kill -9 for what has not stopped after half a minute."""
        processes = self.processes
        server = self.server_process()
        if server is not None:
            family = [each for process in {server, processes["server"]} for each in process.family()]
            server.signal(self.stop_signal)
            wait_until_gone(family, 30)
            kill_hard(family)
        kill_hard(processes.values())

    def kill_hard(self) -> None:
        """kill -9 of the server and all its children, as a power failure: it can write nothing and tell nobody."""
        kill_hard(process for process in (self.server_process(), self.processes.get("server")) if process)

    def discard(self) -> None:
        """The end of it and of its data."""
        if self.leaves_nothing_when_killed:
            kill_hard(self.processes.values())
        else:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Killed inside the block, there again after it."""
        self.kill_hard()
        try:
            yield
        finally:
            self.start()

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def last_log_lines(self, count: int = 15) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]) or "(an empty log)"

    # How it is done.

    def launched(self, inside: list[str]) -> list[str]:
        """The command as it is run from outside its place."""
        return self.entry.place.command(inside, self.folder.parent.parent)

    def run(self, inside: list[str], timeout: float = 60) -> str:
        """A command beside the server, in its place, as its user, in its environment; gives what it prints."""
        uid, gid = self.entry.place.user or (None, None)
        done = subprocess.run(
            self.launched(inside),
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise ServerFailed(f"{' '.join(inside)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def write(self, name: str, text: str) -> None:
        """A file in its folder that the server can read, whatever our umask."""
        (self.folder / name).write_text(text, encoding="utf-8")
        self.hand_over(self.folder / name)

    def hand_over(self, path: Path) -> None:
        """Give a file or folder to whom the server runs as."""
        if user := unprivileged():
            os.chown(path, *user)

    def remember(self, name: str, process: Process) -> None:
        record = self._record()
        record["processes"][name] = [process.pid, process.started]
        self._write(record)

    def _launch(self, name: str, command: list[str]) -> None:
        process = launch(
            self.launched(command),
            folder=self.folder,
            log=self.folder / f"{name}.log",
            environment=self.environment(),
            user=self.entry.place.user,
        )
        self.remember(name, process)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.ready_within
        while not self.answers():
            ended = not self.processes["server"].alive
            if ended or time.monotonic() > deadline:
                kill_hard(self.processes.values())
                what = (
                    "ended while it was starting" if ended else f"did not answer within {self.ready_within:.0f} s and was ended"
                )
                raise ServerFailed(f"{self.entry.name} {what}. Its log {self.log} ends with:\n{self.last_log_lines()}")
            time.sleep(0.05)

    def _record(self) -> dict[str, Any]:
        record = read_json(self.folder / "record.json")
        if record is None:
            raise ServerFailed(f"{self.folder} is gone: this {self.entry.name} has been stopped for good")
        return dict(record)

    def _write(self, record: Mapping[str, Any]) -> None:
        write_json(self.folder / "record.json", record)
