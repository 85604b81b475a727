"""How is a connection to PostgreSQL made, and what do its errors mean for a queue?"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.pq import TransactionStatus

from unpoison.brokers.postgresql.errors import explained
from unpoison.brokers.postgresql.schema import Connection
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port.broker_url import check_port, masked, parse, without_secrets

_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "application_name": "unpoison",
    # A peer that vanished without a word is noticed within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

FORM = "postgresql://user:password@host:5432/shop"
ANSWER_WITHIN = 30.0
"""Seconds for one step of a command that a person waits for."""

SWITCHED_OFF = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_material", "jit")
_PINNED = ";".join([*(f"set {name} = off" for name in SWITCHED_OFF), "set plan_cache_mode = force_generic_plan"])
"""Statistics of a queue are always out of date. Left to itself the planner would one day read all of it for each fetch."""


def parameters(url: str) -> dict[str, Any]:
    """What libpq makes of the URL, with defaults that suit a queue."""
    parse(url, FORM).places(5432, FORM, "localhost")
    try:
        found = conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        said = without_secrets(str(error).strip(), url)
        raise ConfigError(f"{masked(url)!r} is not a PostgreSQL URL ({said}). It looks like {FORM}") from None
    for port in filter(None, str(found.get("port", "")).split(",")):
        check_port(port, masked(url), FORM)
    return _DEFAULTS | found


def connect(url: str) -> Connection:
    """A connection in autocommit mode. Whether there is a pooler in between is known afterwards: see `is_pooled`."""
    connection = psycopg.connect(**parameters(url), autocommit=True, prepare_threshold=None)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # whatever the default of the role is
    if not is_pooled(connection):
        connection.execute(_PINNED)
        connection.prepare_threshold = 0
    return connection


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler answers: its sessions are not ours, so nothing may be kept in one. It cannot know the server's process."""
    row = connection.execute("select pg_backend_pid()").fetchone()
    return row is None or row[0] != connection.info.backend_pid


class Session:
    """One connection that may be used from any thread, and is made anew when it was lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.RLock()
        self._depth = 0
        self._connection: Connection | None = None
        self._is_closed = True
        self._is_durable, self._durability = True, "on"

    def open(self) -> None:
        self._is_closed = False
        with self.use():
            pass

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """The connection, for statements that each commit by themselves."""
        with self._lock, explained(self._url):
            connection = self._connected()
            self._depth += 1
            try:
                yield connection
            finally:
                self._depth -= 1
                if self._depth == 0 and connection.info.transaction_status != TransactionStatus.IDLE:
                    connection.close()  # something failed between a begin and its commit: the next call gets a new one

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """The connection, in a transaction that is on disk when the block is left."""
        with self.use() as connection, connection.transaction():
            if not self._is_durable:
                self.make_durable(connection)
            yield connection

    @contextmanager
    def limited(self, what: str) -> Iterator[None]:
        """One step of a command that a person waits for: a server that stops answering ends it with an error."""
        is_late = threading.Event()

        def give_up(connection: Connection) -> None:
            is_late.set()
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

        with self.use() as connection:
            timer = threading.Timer(ANSWER_WITHIN, give_up, [connection])
            timer.daemon = True
            timer.start()
            try:
                yield
            except (psycopg.Error, BrokerUnavailable):
                if not is_late.is_set():
                    raise
                raise BrokerUnavailable(
                    f"PostgreSQL at {masked(self._url)!r} did not answer within {ANSWER_WITHIN:g} s ({what}). It may be "
                    f"overloaded, or another session may hold these rows. Nothing that was not confirmed has been taken for done."
                ) from None
            finally:
                timer.cancel()

    def make_durable(self, connection: Connection) -> None:
        """Have this transaction wait for the disk, though a role, or a statement before, says that it need not."""
        connection.execute("select set_config('synchronous_commit', %s, true)", (self._durability,))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                with suppress(psycopg.Error):
                    self._connection.close()
                self._connection = None

    def _connected(self) -> Connection:
        if self._is_closed:
            raise BrokerUnavailable(f"PostgreSQL at {masked(self._url)!r} is not open. Call open() first.")
        if self._connection is None or self._connection.closed:
            connection = connect(self._url)
            (found,) = connection.execute("select current_setting('synchronous_commit')").fetchone() or ("on",)
            self._is_durable, self._durability = found != "off", "on" if found == "off" else found
            self._connection = connection
        return self._connection
