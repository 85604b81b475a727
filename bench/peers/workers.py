"""How does a peer's worker get its packages, and how is it started, looked at and killed, with all its processes?"""

import contextlib
import hashlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.harness import machine
from bench.peers.setups import PEERS, Setup
from servers.processes import Process, kill_hard

# The packages, and no others: each peer has a virtual environment of its own in the cache folder, made from its requirements
# file. The folder's name holds a digest of that file and the version of Python: other packages, another environment.


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unpoison" / "peers"


def requirements(peer: str) -> Path:
    return PEERS / peer / "requirements.txt"


def python(peer: str) -> Path:
    """Its interpreter, whether it is there yet or not. Our own side has the environment of this process."""
    if peer == "unpoison":
        return Path(sys.executable)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(requirements(peer).read_bytes()).hexdigest()[:10]
    return cache() / f"{peer}-{version}-{digest}" / "bin" / "python"


def program(peer: str, name: str) -> str:
    return str(python(peer).with_name(name))


def make(peer: str, tell: Callable[[str], None]) -> None:
    """Have the environment; says what it does. Interrupted halfway, it is made anew the next time."""
    if peer == "unpoison":
        return
    folder, listed = python(peer).parent.parent, requirements(peer)
    complete = folder / "complete"
    if complete.exists():
        return
    tell(f"{peer}: making {folder}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    tell(f"{peer}: installing {len(versions(peer))} packages from {listed.relative_to(PEERS.parent.parent)}")
    pip = [python(peer), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--requirement", listed], check=True)
    complete.touch()


def versions(peer: str) -> dict[str, str]:
    """Package → version, as pinned."""
    lines = requirements(peer).read_text().splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    return dict(sorted((name, version) for name, version in pinned))


# (the part that gave this module its question)


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
        self._command = [program(setup.peer, name), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def publish(self, *what: str) -> None:
        """Let its app publish: `publish 5000`, or `kill-test`."""
        command = [python(self._setup.peer), PEERS / "kit" / "publishing.py", self._setup.app.stem, *what]
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
