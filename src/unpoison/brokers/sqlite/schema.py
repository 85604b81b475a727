"""The tables of unpoison in a SQLite file, and their migrations.

    line      messages that were never started, in the order they came
    waiting   messages to start at `due`: delayed ones, retries, those of vanished consumers, replays
    dead      dead letters, in every state
    leases    ranges of the line that a consumer holds
    owners    consumers; each holds a file lock while one of its processes lives
    sources   the number of each source, where its line ends, and up to where it has been handed out

At every moment a message is in exactly one of line, waiting and dead. All names start with `unpoison_`, so that
the file can be the application's own database.

A position in the line is `source number * 2**40 + n`. So the table itself is sorted by source and age: finding and removing the
head of a source needs no index, whatever else the file holds.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from unpoison.port import table_versions
from unpoison.port.table_versions import BROKERS_TABLES, Tables

POSITIONS = 2**40

_V1 = """
create table unpoison_sources (
    no integer primary key, name text not null unique, last integer not null default 0, handed integer not null default 0);
create table unpoison_line (
    position integer primary key, id text not null, key text, headers text, body blob not null, published real not null);
create table unpoison_waiting (
    no integer primary key autoincrement, source integer not null, due real not null, owner integer,
    alone integer not null default 0, counters blob, id text not null, key text, headers text, body blob not null,
    published real not null);
create index unpoison_waiting_due on unpoison_waiting (source, alone, due) where owner is null;
create index unpoison_waiting_owned on unpoison_waiting (owner) where owner is not null;
create table unpoison_leases (
    first integer primary key, last integer not null, owner integer not null);
create table unpoison_owners (
    no integer primary key autoincrement, host text not null, pid integer not null, since real not null);
create table unpoison_dead (
    no integer primary key autoincrement, source integer not null, state text not null, replays integer not null,
    fingerprint text not null, id text not null, key text, headers text, body blob not null, record blob not null);
create index unpoison_dead_state on unpoison_dead (source, state, no);
"""

MIGRATIONS: tuple[str, ...] = (_V1,)
"""Entry n takes a file from version n to n + 1. Entries are only ever added."""


def migrate(connection: sqlite3.Connection, path: str, *, create: bool, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring the file to this version, or refuse it."""
    table_versions.migrate(connection, version, alone, migrations, path, create=create)


@contextmanager
def alone(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction in which nobody else changes the file."""
    connection.execute("begin immediate")
    with connection:
        yield connection


def version(connection: sqlite3.Connection, tables: Tables = BROKERS_TABLES) -> int:
    """The version of these tables in the file; 0 where there are none."""
    try:
        row = connection.execute(f"select version from {tables.version_in}").fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return 0
        raise
    return int(row[0]) if row else 0


def statements() -> str:
    """The statements for people's own migrations."""
    return table_versions.migration_script(MIGRATIONS)
