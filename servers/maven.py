"""Where does a server that is written in Java come from? From Maven's archive: one artifact with all that it needs.

Fetched once and kept in the user's cache; java and maven themselves are Debian's packages, unless they are there.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servers.errors import ServerMissing
from servers.files import locked, make_folder
from servers.owners import state_folder
from servers.places import install, unprivileged

PACKAGES = {"java": "default-jre-headless", "mvn": "maven"}
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>unpoison</groupId><artifactId>servers</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


@dataclass(frozen=True)
class Jars:
    """The jars of these artifacts (`group:name:version`), the server's first. `find()` gives the class path that java takes."""

    artifacts: tuple[str, ...]

    def get(self) -> None:
        _program("java")
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._kept.with_suffix(".lock")):
            if not self._kept.exists():
                self._fetch()
            # The one who runs it may have no way into our home.
            if not self._folder.exists():
                unfinished = self._folder.with_suffix(".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.copytree(self._kept, unfinished)
                make_folder(unfinished, exist_ok=True)
                unfinished.chmod(0o755)
                unfinished.rename(self._folder)

    def _fetch(self) -> None:
        unfinished = self._kept.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        with tempfile.TemporaryDirectory() as work:
            dependencies = "".join(DEPENDENCY.format(*each.split(":")) for each in self.artifacts)
            (Path(work) / "pom.xml").write_text(POM.format(dependencies=dependencies), encoding="utf-8")
            command = [
                _program("mvn"),
                "-q",
                "-B",
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={unfinished}",
            ]
            done = subprocess.run(command, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = " / ".join((done.stdout + done.stderr).strip().splitlines()[:3]) or "no output"
            raise ServerMissing(f"{' '.join(self.artifacts)} could not be fetched by maven: {said}")
        unfinished.rename(self._kept)

    @property
    def _name(self) -> str:
        _, name, version = self.artifacts[0].split(":")
        return f"jars-{name}-{version}"

    @property
    def _kept(self) -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "unpoison" / self._name

    @property
    def _folder(self) -> Path:
        return state_folder() / self._name

    def find(self, *patterns: str) -> str | None:
        return f"{self._folder}/*" if self._folder.exists() else None

    def command(self, inside: Sequence[str], state: Path) -> list[str]:
        return list(inside)

    @property
    def user(self) -> tuple[int, int] | None:
        return unprivileged()


def java() -> str:
    """The whole path of java: a launched command is not searched for."""
    return _program("java")


def _program(name: str) -> str:
    if not shutil.which(name):
        install(PACKAGES[name])
    if not (found := shutil.which(name)):
        raise ServerMissing(f"the package {PACKAGES[name]} is installed, but no {name} is on the path")
    return found
