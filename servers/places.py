"""Where does a server's program come from, and how is a command run there?

Two places: this machine (a program that is already there, else Debian's package), and a Debian of another release in a folder of
its own, for versions that this machine's release does not have. Both need root to fetch something and say so when there is none.
"""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from servers.errors import ServerMissing
from servers.files import locked
from servers.owners import state_folder

POLICY = Path("/usr/sbin/policy-rc.d")
DO_NOT_START = """#!/bin/sh
# Written while the tests of unpoison install a server: its package must not start a service of its own.
exit 101
"""


class Place(Protocol):
    """Somewhere a server's program can be."""

    def get(self) -> None:
        """Have the program there, installed if need be. Safe from several processes at once. Raises ServerMissing."""

    def find(self, *patterns: str) -> str | None:
        """The path, seen from inside, of the last file by name that fits one of the patterns; earlier patterns go first."""

    def command(self, inside: Sequence[str], state: Path) -> list[str]:
        """What to run so that the command runs there, unprivileged, and sees `state` under the same path."""

    @property
    def user(self) -> tuple[int, int] | None:
        """Who a launched command has to become first; None: stays who it is."""


def unprivileged() -> tuple[int, int] | None:
    """Nobody, if we are root: no server of a test needs to be root, and PostgreSQL refuses to. Else None: stay who we are."""
    if os.getuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


@dataclass(frozen=True)
class Machine:
    """This machine. `programs` are patterns of what must be there, else `packages` are installed."""

    packages: tuple[str, ...]
    programs: tuple[str, ...]

    def get(self) -> None:
        if not self.find(*self.programs):
            install(*self.packages)
        if not self.find(*self.programs):
            raise ServerMissing(f"the package {' '.join(self.packages)} is installed but has none of {', '.join(self.programs)}")

    def find(self, *patterns: str) -> str | None:
        return _find(Path("/"), patterns)

    def command(self, inside: Sequence[str], state: Path) -> list[str]:
        return list(inside)

    @property
    def user(self) -> tuple[int, int] | None:
        return unprivileged()


@dataclass(frozen=True)
class DebianRoot:
    """A folder with another release of Debian in it, made once and kept in the user's cache."""

    release: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "unpoison" / "-".join((self.release, *self.packages))

    def get(self) -> None:
        if os.getuid() != 0:
            raise ServerMissing(f"a Debian {self.release} with {' '.join(self.packages)} can be made and used by root only")
        if self.folder.exists():
            return
        if not shutil.which("mmdebstrap"):
            install("mmdebstrap")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.folder.with_suffix(".lock")):
            if not self.folder.exists():
                self._make()

    def _make(self) -> None:
        # Under another name until it is whole: a folder that is there is one that works.
        unfinished = self.folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        options = [
            "--variant=apt",
            # A testing release's index may be older than it says it may be.
            '--aptopt=Acquire::Check-Valid-Until "false"',
            # The user _apt cannot reach into root's home.
            '--aptopt=APT::Sandbox::User "root"',
            f"--include={','.join(self.packages)}",
        ]
        done = _run(["mmdebstrap", *options, self.release, str(unfinished), _mirror()])
        if done.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise ServerMissing(f"no Debian {self.release} with {' '.join(self.packages)} could be made: {_end_of(done.stdout)}")
        # Erlang looks itself up by this name, and the smallest Debian does not know it.
        (unfinished / "etc/hosts").write_text("127.0.0.1 localhost\n", encoding="ascii")
        unfinished.rename(self.folder)

    def find(self, *patterns: str) -> str | None:
        return _find(self.folder, patterns)

    def command(self, inside: Sequence[str], state: Path) -> list[str]:
        # The mounts are in a namespace of the command's own: they go when it goes, and nothing is ever left mounted.
        mounts = """set -e
root=$1; state=$2; user=$3; shift 3
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mkdir -p "$root$state"
mount --bind "$state" "$root$state"
exec chroot --userspec="$user" --groups= "$root" "$@"
"""
        uid, gid = unprivileged() or (os.getuid(), os.getgid())
        shell = ["sh", "-c", mounts, "sh", str(self.folder), str(state), f"+{uid}:+{gid}"]
        return ["unshare", "--mount", "--propagation", "private", *shell, *inside]

    @property
    def user(self) -> tuple[int, int] | None:
        return None  # chroot changes the user, after the mounts


def install(*packages: str) -> None:
    """Debian packages, by name, without starting their services. One process at a time."""
    names = " ".join(packages)
    if not shutil.which("apt-get"):
        raise ServerMissing(f"{names} is not there, and neither is apt-get to install it")
    if os.getuid() != 0:
        raise ServerMissing(f"{names} is not installed. Run: sudo apt-get install --no-install-recommends {names}")
    with locked(state_folder() / "install.lock"):
        # Ours may have been left by an installation that was killed; anybody else's stays.
        ours = not POLICY.exists() or POLICY.read_text(encoding="utf-8", errors="replace") == DO_NOT_START
        if ours:
            POLICY.write_text(DO_NOT_START, encoding="utf-8")
            POLICY.chmod(0o755)
        try:
            _install(packages)
        finally:
            if ours:
                POLICY.unlink(missing_ok=True)


def _install(packages: Sequence[str]) -> None:
    # Others may be installing something too: wait for them.
    command = ["apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *packages]
    done = _run(command)
    if done.returncode != 0:
        _run(["apt-get", "update"])
        done = _run(command)
    if done.returncode != 0:
        raise ServerMissing(f"{' '.join(packages)} could not be installed: {_end_of(done.stdout)}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )


def _end_of(output: str) -> str:
    return " / ".join(output.strip().splitlines()[-3:]) or "no output"


def _mirror() -> str:
    """The archive that apt itself uses for Debian's main packages."""
    listing = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"]).stdout
    # Not the archives of security fixes and updates: they have no release of their own.
    plain = [line.split()[0] for line in listing.splitlines() if re.fullmatch(r"\S+ [a-z]+", line)]
    if not plain:
        raise ServerMissing("apt knows no archive from which another release of Debian could be made; see: apt-get indextargets")
    return plain[0]


def _find(top: Path, patterns: Sequence[str]) -> str | None:
    for pattern in patterns:
        if found := sorted(top.glob(pattern.lstrip("/"))):
            return f"/{found[-1].relative_to(top)}"
    return None
