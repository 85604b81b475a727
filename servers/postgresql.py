"""PostgreSQL: one cluster, one user without a password, TCP on the loopback address only."""

import signal
import uuid
from collections.abc import Mapping
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from servers.places import Machine
from servers.server import Entry, Server


class PostgreSQL(Server):
    # SIGINT: connections are ended, then a checkpoint. SIGTERM would wait for every client to leave.
    stop_signal = signal.SIGINT

    @property
    def url(self) -> str:
        return self.given or f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        # Without --no-sync this takes several times as long; what happens later is synced.
        self.run([self._program("initdb"), "-D", self._data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"])
        with (self.folder / "data" / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write("\ninclude '../tests.conf'\n")

    def configure(self, settings: Mapping[str, str]) -> None:
        # In a file and not on the command line, which would beat ALTER SYSTEM in a test.
        lines = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            # In its folder: the shared memory of the system keeps what a killed one has left there.
            "dynamic_shared_memory_type": "mmap",
            "wal_level": "logical",
            "max_connections": "200",
            **settings,
        }
        self.write("tests.conf", "".join(f"{name} = '{value}'\n" for name, value in lines.items()))

    def commands(self) -> dict[str, list[str]]:
        return {"server": [self._program("postgres"), "-D", self._data]}

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def version(self) -> str:
        with psycopg.connect(self.url) as run:
            [(version,)] = run.execute("show server_version").fetchall()
            return str(version).split()[0]

    def fresh(self) -> str:
        return new_database(self.url)

    def in_force(self) -> dict[str, str]:
        with psycopg.connect(self.url, connect_timeout=30) as run:  # of a new session: what ALTER SYSTEM and ALTER ROLE have set
            settings = run.execute(
                "select name, setting from pg_settings where source <> 'client'"
                " union all select name || ' after a restart', setting from pg_file_settings where not applied"
            )
            return {str(name): str(value) for name, value in settings}

    def restore(self) -> None:
        self.kill_hard()
        (self.folder / "data" / "postgresql.auto.conf").write_text("", encoding="utf-8")  # where ALTER SYSTEM writes
        self.start()
        with psycopg.connect(self.url, autocommit=True) as run:
            run.execute("alter role postgres reset all")
        self.accept()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _program(self, name: str) -> str:
        found = self.entry.place.find(*PROGRAMS) or PROGRAMS[0]
        return str(PurePosixPath(found).with_name(name))


def new_database(url: str) -> str:
    """The address of a new, empty database on the server that `url` leads to."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as run:
        run.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return urlsplit(url)._replace(path=f"/{name}").geturl()


PROGRAMS = (
    "/usr/lib/postgresql/*/bin/postgres",
    "/usr/pgsql-*/bin/postgres",
    "/usr/local/pgsql/bin/postgres",
    "/usr/bin/postgres",
)
POSTGRESQL = Entry("postgresql", "UNPOISON_TEST_POSTGRESQL_URL", Machine(("postgresql",), PROGRAMS), PostgreSQL)
