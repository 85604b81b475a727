"""pgbouncer: transaction pooling in front of a PostgreSQL, as it is set up in production."""

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import psycopg

from servers.places import Machine
from servers.postgresql import new_database
from servers.server import Entry, Server


class PgBouncer(Server):
    @property
    def url(self) -> str:
        if self.given:
            return self.given
        upstream = urlsplit(self.upstream)
        return f"postgresql://{upstream.username or 'postgres'}@127.0.0.1:{self.port}{upstream.path}"

    def configure(self, settings: Mapping[str, str]) -> None:
        upstream = urlsplit(self.upstream)
        target = {
            "host": upstream.hostname or "127.0.0.1",
            "port": str(upstream.port or 5432),
            "user": unquote(upstream.username or "postgres"),
            "password": unquote(upstream.password or ""),
        }
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "max_client_conn": "500",
            "default_pool_size": "20",
            # psycopg sends it at every connect; without this pgbouncer refuses it.
            "ignore_startup_parameters": "extra_float_digits",
            **settings,
        }
        text = [
            "[databases]",
            "* = " + " ".join(f"{name}='{value}'" for name, value in target.items() if value),
            "",
            "[pgbouncer]",
        ]
        text += [f"{name} = {value}" for name, value in lines.items()]
        self.write("pgbouncer.ini", "\n".join(text) + "\n")

    def commands(self) -> dict[str, list[str]]:
        return {"server": [self.entry.place.find(*PROGRAMS) or PROGRAMS[0], str(self.folder / "pgbouncer.ini")]}

    def answers(self) -> bool:
        """Whether it answers depends on the PostgreSQL behind it, too."""
        try:
            with psycopg.connect(self.url, connect_timeout=2, autocommit=True) as run:
                run.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True

    def version(self) -> str:
        # Its own console, a database that it makes up. It does not know the extended protocol: no parameters, no transaction.
        console = urlsplit(self.url)._replace(path="/pgbouncer").geturl()
        with psycopg.connect(console, autocommit=True, cursor_factory=psycopg.ClientCursor) as run:
            [(version,)] = run.execute("show version").fetchall()
            return str(version).split()[-1]

    def fresh(self) -> str:
        return new_database(self.url)


PROGRAMS = ("/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer")
PGBOUNCER = Entry("pgbouncer", "UNPOISON_TEST_PGBOUNCER_URL", Machine(("pgbouncer",), PROGRAMS), PgBouncer, behind="postgresql")
