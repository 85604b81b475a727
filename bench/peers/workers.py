"""How is a peer's worker started, looked at and killed? With all the processes that it makes."""

import contextlib
import os
import shlex
import signal
import subprocess
from pathlib import Path

from bench.harness import machine
from bench.peers import environments
from bench.peers.setups import PEERS, Setup
from servers.processes import Process, kill_hard

LOG = "worker.log"
START_WITHIN = 300


class WorkerFailed(Exception):
    """A peer did not do what it was asked; with the last lines that it wrote."""


class Worker:
    """One worker on one broker. May be started again after it has died."""

    def __init__(self, setup: Setup, url: str, folder: Path) -> None:
        self._setup, self._folder = setup, folder
        self._variables = setup.variables(url, folder)
        name, *arguments = shlex.split(setup.worker.replace("{url}", url))
        self._command = [environments.program(setup.peer, name), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def publish(self, *what: str) -> None:
        """Let its app publish: `publish 5000`, or `kill-test`."""
        command = [environments.python(self._setup.peer), PEERS / "kit" / "publishing.py", self._setup.app.stem, *what]
        ran = subprocess.run(
            command,
            cwd=self._setup.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=START_WITHIN,
            check=False,
        )
        if ran.returncode != 0:
            raise WorkerFailed(f"{self._setup.name}: {' '.join(what)} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")

    def start(self) -> None:
        with (self._folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._setup.folder,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # A handler that kills its whole worker has to know where that begins.
        (self._folder / "pid").write_text(str(self._process.pid))

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def cpu(self) -> float:
        """Seconds, of all its processes."""
        return machine.used_by_tree(self._process.pid) if self._process else 0.0

    def processes(self) -> list[Process]:
        """Those that are alive."""
        main = Process.of(self._process.pid) if self._process else None
        return main.family() if main else []

    def kill(self) -> None:
        """All of it, at once."""
        if self._process is None:
            return
        kill_hard(self.processes())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_lines(self, count: int = 25) -> str:
        lines = (self._folder / LOG).read_text(errors="replace").splitlines()
        return "\n".join(lines[-count:])
