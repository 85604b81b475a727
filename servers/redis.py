"""Redis: the append-only file on, TCP on the loopback address only, and many numbered databases, one for each test.

Twice: the version of this machine's Debian (7.0 on Debian 12) and a current one (8).
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

import redis

from servers.errors import ServerFailed
from servers.places import DebianRoot, Machine
from servers.server import Entry, Server

DATABASES = 20_000


class Redis(Server):
    # What it confirmed is in the append-only file; an orderly stop would only write the same again.
    leaves_nothing_when_killed = True

    @property
    def url(self) -> str:
        return self.given or f"redis://127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        (self.folder / "data").mkdir()
        self.hand_over(self.folder / "data")

    def configure(self, settings: Mapping[str, str]) -> None:
        lines = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "cluster-port": str(self.ports["bus"]),  # by itself it would take one that the system may have given to somebody
            "dir": str(self.folder / "data"),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "databases": str(DATABASES),
            "daemonize": "no",
            **settings,
        }
        self.write("redis.conf", "".join(f"{name} {value}\n" for name, value in lines.items()))

    def commands(self) -> dict[str, list[str]]:
        return {"server": [self.entry.place.find(*PROGRAMS) or PROGRAMS[0], str(self.folder / "redis.conf")]}

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ConnectionError:  # also while it reads its file: BusyLoadingError
            return False

    def version(self) -> str:
        with self.client() as client:
            return str(client.info("server")["redis_version"])

    def fresh(self) -> str:
        """The next database that nobody has used. The first one counts them."""
        with self.client() as client:
            number = int(client.incr("databases-given"))
        if number >= DATABASES:
            raise ServerFailed(f"all {DATABASES} databases of {self.url} were given out; start a new one")
        return urlsplit(self.url)._replace(path=f"/{number}").geturl()

    def in_force(self) -> dict[str, str]:
        with self.client() as client:
            settings = {str(name): str(value) for name, value in client.config_get("*").items()}
            written = {name: str(value) for name, value in client.info("persistence").items() if name.endswith("_status")}
        return settings | written

    def client(self, url: str | None = None) -> "redis.Redis":
        """A connection for a test to look with; of this server, or of a database on it."""
        return redis.Redis.from_url(url or self.url, socket_timeout=5)


PORTS = ("main", "bus")
PROGRAMS = ("/usr/bin/redis-server", "/usr/local/bin/redis-server", "/usr/bin/valkey-server")
REDIS = Entry("redis", "UNPOISON_TEST_REDIS_URL", Machine(("redis-server",), PROGRAMS), Redis, PORTS)
REDIS_8 = Entry("redis-8", "UNPOISON_TEST_REDIS_8_URL", DebianRoot("forky", ("redis-server",)), Redis, PORTS)
