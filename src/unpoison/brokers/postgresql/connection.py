"""Connections to PostgreSQL: what the URL says, how they are made, and one that any thread may use."""

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
from unpoison.brokers.postgresql.schema import PGConnection
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port.broker import UNCONFIRMED
from unpoison.port.broker_url import check_port, masked, parse, without_secrets

_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "application_name": "unpoison",
    # A peer that vanished silently is noticed within half a minute.
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
"""Statistics of a queue are always out of date. With them the planner would one day read the whole table for each fetch."""

_WITHOUT_JIT = "set jit = off"
"""It takes longer to compile a condition than to read a table with it."""


def parameters(url: str) -> dict[str, Any]:
    """The parameters in the URL as libpq reads them, with defaults for a queue."""
    parse(url, FORM).places(5432, FORM, "localhost")
    try:
        found = conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        said = without_secrets(str(error).strip(), url)
        raise ConfigError(f"{masked(url)!r} is not a PostgreSQL URL ({said}). It looks like {FORM}") from None
    for port in filter(None, str(found.get("port", "")).split(",")):
        check_port(port, masked(url), FORM)
    return _DEFAULTS | found


def connect(url: str, *, is_queue: bool = True) -> PGConnection:
    """A new connection in autocommit mode. `is_queue`: for tables whose statistics are always out of date."""
    connection = psycopg.connect(**parameters(url), autocommit=True, prepare_threshold=None)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # the role may have another default
    if not is_pooled(connection):
        connection.execute(_PINNED if is_queue else _WITHOUT_JIT)
        connection.prepare_threshold = 0
    return connection


def is_pooled(connection: PGConnection) -> bool:
    """Whether a pooler answers. It does not know the server's process id. Its sessions are shared: keep nothing in them."""
    row = connection.execute("select pg_backend_pid()").fetchone()
    return row is None or row[0] != connection.info.backend_pid


def interrupt(connection: PGConnection) -> None:
    """End a connection whose server does not answer. A thread that waits for the answer gets an error."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


class Connection:
    """One connection that any thread may use. It reconnects when it was lost."""

    def __init__(self, url: str, *, is_queue: bool = True) -> None:
        self._url, self._is_queue = url, is_queue
        self._lock = threading.RLock()
        self._depth = 0
        self._connection: PGConnection | None = None
        self._is_closed = True
        self._is_durable, self._durability = True, "on"

    def open(self) -> None:
        self._is_closed = False
        with self.use():
            pass

    @contextmanager
    def use(self) -> Iterator[PGConnection]:
        """The connection, for statements that each commit on their own."""
        with self._lock, explained(self._url):
            connection = self._connected()
            self._depth += 1
            try:
                yield connection
            finally:
                self._depth -= 1
                if self._depth == 0 and connection.info.transaction_status != TransactionStatus.IDLE:
                    connection.close()  # a statement failed before its commit: the next call reconnects

    @contextmanager
    def transaction(self) -> Iterator[PGConnection]:
        """The connection, in a transaction that is on disk when the block ends."""
        with self.use() as connection, connection.transaction():
            if not self._is_durable:
                self.make_durable(connection)
            yield connection

    @contextmanager
    def limited(self, what: str) -> Iterator[None]:
        """A time limit for one step of a command: a person waits for it."""
        is_late = threading.Event()

        def give_up(connection: PGConnection) -> None:
            is_late.set()
            interrupt(connection)

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
                    f"overloaded, or another session may hold these rows. {UNCONFIRMED}"
                ) from None
            finally:
                timer.cancel()

    def make_durable(self, connection: PGConnection) -> None:
        """Make this transaction wait for the disk, whatever the role or an earlier statement has set."""
        connection.execute("select set_config('synchronous_commit', %s, true)", (self._durability,))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                with suppress(psycopg.Error):
                    self._connection.close()
                self._connection = None

    def _connected(self) -> PGConnection:
        if self._is_closed:
            raise BrokerUnavailable(f"PostgreSQL at {masked(self._url)!r} is not open. Call open() first.")
        if self._connection is None or self._connection.closed:
            connection = connect(self._url, is_queue=self._is_queue)
            (found,) = connection.execute("select current_setting('synchronous_commit')").fetchone() or ("on",)
            self._is_durable, self._durability = found != "off", "on" if found == "off" else found
            self._connection = connection
        return self._connection
