"""The wheel as people get it: built from the source archive, installed into an empty environment, used from an empty folder."""

import fcntl
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.command_line import LIMIT, Ended

PROJECT = Path(__file__).parents[2]
CONSTRAINTS = str(PROJECT / "constraints.txt")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
SLOW = 240
"""Seconds for a build or an install on a busy machine."""


@dataclass(frozen=True)
class Installed:
    """An environment in which nothing is installed but the wheel and what it needs."""

    folder: Path
    wheel: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: str, cwd: Path) -> Ended:
        """A command of the environment. It sees nothing of the environment that the tests run in."""
        variables = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(cwd),
            "TMPDIR": str(cwd),
            "LANG": "C.UTF-8",
        }
        program = str(self.folder / "bin" / command[0])
        ended = subprocess.run(
            [program, *command[1:]],
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr.decode())

    def packages(self) -> dict[str, str]:
        """Name and version of everything that is installed."""
        listed = _run(*PIP, "--python", str(self.python), "list", "--format", "json")
        return {package["name"].lower(): package["version"] for package in json.loads(listed)}


def install(folder: Path) -> Installed:
    """Build and install into a folder, unless another process of the same test run has done so already."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finished = folder / "finished"
        if not finished.exists():
            _need_index(folder)
            _build(folder / "dist")
            _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder / "venv"))
            python = folder / "venv" / "bin" / "python"
            from_folder = ["--find-links", str(folder / "dist"), "--constraint", CONSTRAINTS]
            _run(*PIP, "--python", str(python), *tutorial_install(), *from_folder)
            finished.touch()
    return Installed(folder / "venv", _wheel(folder))


def tutorial_install() -> list[str]:
    """The words behind `pip` in the tutorial's first command: what people type is what is tested."""
    (line,) = re.findall(r"^\$ pip (install .*)$", (PROJECT / "docs" / "tutorial.md").read_text(), re.MULTILINE)
    return shlex.split(line)


def _need_index(folder: Path) -> None:
    """Without a package index nothing can be installed. On a laptop that is a pity, in CI it is a failure."""
    smallest = "mdurl"
    arguments = ["download", "--quiet", "--no-deps", "--no-cache-dir", "--retries", "0", "--constraint", CONSTRAINTS]
    ended = subprocess.run(
        [*PIP, *arguments, "--dest", str(folder / "probe"), smallest], capture_output=True, text=True, timeout=SLOW, check=False
    )
    if ended.returncode:
        why = next((line for line in ended.stderr.splitlines() if line.startswith("ERROR")), "")
        said = f"THE WHEEL WAS NOT TESTED: pip cannot get {smallest!r} from the package index. {why}"
        if os.environ.get("CI") == "true":
            pytest.fail(said, pytrace=False)
        pytest.skip(said)


def _build(out: Path) -> None:
    """As `make wheel` does: first the source archive, then the wheel out of it."""
    in_place = ["--no-isolation"] if importlib.util.find_spec("hatchling") else []
    _run(sys.executable, "-m", "build", *in_place, "--outdir", str(out), str(PROJECT))


def _wheel(folder: Path) -> Path:
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def _run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SLOW, check=False)
    assert ended.returncode == 0, f"{' '.join(command)}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout
