"""Which store an app has, and the store for a URL. Modules of databases are imported only when used."""

from unpoison.brokers import resolved
from unpoison.errors import ConfigError, FilterError, MissingExtra
from unpoison.filters.filter import Filter
from unpoison.port.broker_url import masked, scheme_of
from unpoison.store.port import Store
from unpoison.store.schema import MIGRATIONS, MIGRATIONS_OF_POSTGRESQL, statements
from unpoison.store.sql_store import LetterDatabase, SQLStore

FORMS = "sqlite:///shop.db (one host) or postgresql://user:password@host/shop (a fleet)"
_SQLITE, _POSTGRESQL = ("sqlite",), ("postgresql", "postgres")


def store_url(broker: str, given: str | None) -> str:
    """The URL of the store of an app, with an absolute path if it is a file; empty if the app has none.

    `given` is what the user has set: None for the database of the broker, if it is one, and "" for no store.
    """
    if given is None:
        return broker if scheme_of(broker) in (*_SQLITE, *_POSTGRESQL) else ""
    if given == "":
        return ""
    _check(given)
    return resolved(given)


def check_collects(url: str, store: str | None) -> None:
    """Raise ConfigError where dead letters cannot be collected."""
    if scheme_of(url) == "memory":
        raise ConfigError(f"{masked(url)!r} keeps its dead letters in one process, from where nothing can be collected.")
    if not store:
        raise ConfigError(
            f"collect=True moves dead letters into a store, and {masked(url)!r} has none. Give the app a store: {FORMS}."
        )


def expiry(text: str, *, collect: bool = True) -> Filter:
    """The filter of letters that expire. Raises ConfigError if it is none, or if it would delete letters however new they are."""
    try:
        found = Filter.parse(text)
    except FilterError as error:
        raise ConfigError(f"expire={text!r} is no filter of dead letters. {error}") from error
    if not found.needs("age"):
        raise ConfigError(
            f"expire={text!r} would delete dead letters as soon as they come. Say for how long they are kept, as in "
            f"'age>90d -state:dead', in each part of the filter."
        )
    if not collect:
        raise ConfigError("expire deletes letters from the store, and only a collector does that. Add collect=True.")
    return found


def store_for(url: str) -> Store:
    """A store for this URL, not yet opened."""
    return SQLStore(database_for(url, is_queue=True))


def database_for(url: str, *, is_queue: bool) -> LetterDatabase:
    """A connection to a store. `is_queue`: for tables in which nearly everything comes and goes."""
    _check(url)
    if scheme_of(url) in _SQLITE:
        from unpoison.store.sqlite import SQLiteDatabase  # noqa: PLC0415 - only where it is used

        return SQLiteDatabase(url)
    try:
        from unpoison.store.postgresql import PostgreSQLDatabase  # noqa: PLC0415 - psycopg is an extra
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise MissingExtra("A store in PostgreSQL", "psycopg", "postgresql") from error
    return PostgreSQLDatabase(url, is_queue=is_queue)


def statements_for(url: str) -> str:
    """The statements that create the tables of a store, for people's own migrations."""
    _check(url)
    return statements(MIGRATIONS if scheme_of(url) in _SQLITE else MIGRATIONS_OF_POSTGRESQL)


def has_needs(url: str) -> bool:
    """Whether an administrator must create or grant anything for this store. Raises MissingExtra if it cannot be used here."""
    store_for(url)
    return scheme_of(url) not in _SQLITE


def _check(url: str) -> None:
    if scheme_of(url) not in (*_SQLITE, *_POSTGRESQL):
        raise ConfigError(
            f"{masked(url)!r} cannot be a store, which is a SQLite file or a PostgreSQL database. Write it like {FORMS}. For no "
            f"store write store=''."
        )
