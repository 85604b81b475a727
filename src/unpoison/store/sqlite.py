"""A SQLite file as the store: the consumers of one host share it. It may be the file of the broker.

It has a connection of its own. A transaction takes well under a millisecond; nothing in it waits for anything.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unpoison.brokers.sqlite.file import connect, path_of, transaction
from unpoison.brokers.sqlite.schema import alone, version
from unpoison.errors import BrokerUnavailable, StoreUnavailable
from unpoison.port.table_versions import migrate
from unpoison.store.letters.fts5 import FTS5
from unpoison.store.port import CannotKeep
from unpoison.store.rows import Execute, storable
from unpoison.store.schema import MIGRATIONS, OURS
from unpoison.store.sql_store import IndexesTexts

BUSY_TIMEOUT = 5.0
"""Seconds that a transaction waits for its turn. Only bulk work holds the file that long, and consumers go on without a store."""


MOST_HELD = 0.01
"""Seconds for which one transaction that writes letters holds the file, about: consumers of the file wait meanwhile."""


class SQLiteDatabase:
    """One connection to the file."""

    most_held = MOST_HELD
    text_index: IndexesTexts = FTS5()

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path_of(url), clock
        self._connection: sqlite3.Connection | None = None

    def open(self, *, create: bool) -> None:
        self.close()
        with self._explained():
            connection = connect(self._path, create=create)
            try:
                connection.execute(f"pragma busy_timeout = {BUSY_TIMEOUT * 1000:.0f}")
                migrate(connection, version, alone, MIGRATIONS, self._path, create=create, tables=OURS)
            except BaseException:
                connection.close()
                raise
        self._connection = connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def make_text_index(self) -> None:
        """It is made when it is first written."""

    def wrote_letters(self, count: int) -> None:
        """It finds letters by their identity without statistics."""

    def now(self, run: Execute) -> float:
        return self._clock()

    @contextmanager
    def reading(self) -> Iterator[Execute]:
        with self._transaction("begin") as run:
            yield run

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Execute]:
        with self._explained():
            self._connected().execute(f"pragma synchronous = {'full' if durable else 'normal'}")
        with self._transaction("begin immediate") as run:
            yield run

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Execute]:
        with self._explained():
            connection = self._connected()
            with transaction(connection, begin):
                yield lambda statement, values: connection.execute(statement, storable(values))

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"The store in {self._path!r} is not open. Call open() first.")
        return self._connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            kind = CannotKeep if isinstance(error, sqlite3.DataError) else StoreUnavailable
            raise kind(f"The store in the SQLite file {self._path!r} cannot be used: {error}.{_meaning(error)}") from error
        except BrokerUnavailable as error:
            raise StoreUnavailable(f"The store cannot be used. {error}") from error


def _meaning(error: Exception) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return f" Another program held a write transaction for more than {BUSY_TIMEOUT:g} s."
    if "full" in text:
        return " The disk is full: free some space."
    if "readonly" in text:
        return " This user may not write the file or its folder: check owner, mode and mount."
    if "too big" in text:
        return " SQLite keeps nothing that is larger than 1 GB."
    return ""
