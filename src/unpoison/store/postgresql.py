"""A PostgreSQL database as the store: the consumers of a whole fleet share it. Its clock counts, not those of the hosts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial

import psycopg

from unpoison.brokers.postgresql.connection import Connection, parameters
from unpoison.brokers.postgresql.schema import PGConnection, alone, version
from unpoison.errors import BrokerUnavailable, StoreUnavailable
from unpoison.port.broker_url import masked, without_secrets
from unpoison.port.table_versions import migrate
from unpoison.store.letters.pg_trgm import Trigrams
from unpoison.store.port import CannotKeep
from unpoison.store.rows import Execute, Rows, storable
from unpoison.store.schema import MIGRATIONS_OF_POSTGRESQL as MIGRATIONS
from unpoison.store.schema import OURS

ASKING = "asking the store"

_REFUSED = (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile)
"""The role may not create the extension, or the server does not have it."""

_TOO_MUCH = (psycopg.DataError, psycopg.errors.ProgramLimitExceeded)
"""What is too large for a value or an index, and what cannot be a value."""

alone_in_store = partial(alone, tables=OURS)


ANALYZE_FIRST = 1_000
"""Letters after which the server looks at their table for the first time."""


class PostgreSQLDatabase:
    """One connection to the database. `is_queue`: nearly all that is in its tables comes and goes."""

    most_held = float("inf")  # a transaction keeps nobody out but those who write the same
    text_index = Trigrams()

    def __init__(self, url: str, *, is_queue: bool = True) -> None:
        parameters(url)  # refuses a URL that cannot work
        self._url, self._connection = url, Connection(url, is_queue=is_queue)
        self._creates = False
        self._written, self._analyze_at = 0, ANALYZE_FIRST

    def open(self, *, create: bool) -> None:
        self._creates = create
        with self._explained():
            self._connection.open()
            try:
                with self._connection.use() as run:
                    migrate(run, version, alone_in_store, MIGRATIONS, masked(self._url), create=create, tables=OURS)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        self._connection.close()

    def make_text_index(self) -> None:
        """With create=False it is left to the administrator, and so it is where the role may not."""
        if not self._creates:
            return
        try:
            with self.writing() as run:
                if not self.text_index.is_there(run):
                    self.text_index.make(run)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__.__cause__ if error.__cause__ else None, _REFUSED):
                raise
            self._creates = False

    def wrote_letters(self, count: int) -> None:
        """Have the server look at the table when it has grown tenfold. By itself it does so a minute later, and until then goes
        through all letters of a source for each batch that comes: 40,000 took twice as long as four times 10,000.

        A user who does not own the table may not have it looked at; the server says so in its log, and nothing else happens."""
        self._written += count
        if self._written >= self._analyze_at:
            self._analyze_at = 10 * self._written
            with suppress(StoreUnavailable), self.writing() as run:
                run("analyze unpoison_letters", ())

    def now(self, run: Execute) -> float:
        return float(run("select extract(epoch from clock_timestamp())::float8", ()).fetchall()[0][0])

    @contextmanager
    def reading(self) -> Iterator[Execute]:
        with self._explained(), self._connection.limited(ASKING), self._connection.use() as connection:
            yield _Statements(connection)

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Execute]:
        with self._explained(), self._connection.limited(ASKING), self._connection.transaction() as connection:
            yield _Statements(connection)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokerUnavailable as error:
            cause = error.__cause__ or error
            kind = CannotKeep if isinstance(cause, _TOO_MUCH) else StoreUnavailable
            raise kind(explained(cause, self._url)) from error


class _Statements:
    """Runs statements on one connection."""

    def __init__(self, connection: PGConnection) -> None:
        self._connection = connection

    def __call__(self, statement: str, values: Sequence[object]) -> Rows:
        return self._connection.execute(_with_marks(statement), storable(values))


@cache
def _with_marks(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


def explained(error: BaseException, url: str) -> str:
    """What an error of the client means for a store."""
    text = without_secrets(" ".join(str(error).split()), url)
    return f"The store at {masked(url)!r} cannot be used: {text.rstrip('.')}.{_meaning(error)}"


def _meaning(error: BaseException) -> str:
    match error:
        case psycopg.errors.InsufficientPrivilege() | psycopg.errors.ReadOnlySqlTransaction():
            return " Grant this user the rights that docs/store.md lists."
        case psycopg.errors.UndefinedTable():
            return " Run: unpoison migrate URL"
        case psycopg.errors.DiskFull():
            return " The disk of the server is full: free some space."
        case psycopg.DataError() | psycopg.errors.ProgramLimitExceeded():
            return " PostgreSQL cannot keep this one value; the server itself is well."
        case psycopg.OperationalError():
            return " Check that the server runs and can be reached."
        case _:
            return ""
