"""The tables of unpoison in a PostgreSQL database, their migrations, and the rights that a role needs.

    line      messages that were never started, in the order in which they were written
    handed    up to where the line of a source has been handed out, and what was visible then; the newest row counts
    waiting   messages to start at `due`: delayed ones, retries, late ones, those of vanished consumers, replays
    dead      dead letters, in every state
    leases    ranges of the line that a consumer holds; of a range, only the rows visible when it was handed out
    owners    consumers, with the time at which the lease of each ends
    sources   the number of each source
    settled   messages that a handler settled in its own transaction, until their consumer knows

At every moment a message is in exactly one of line, waiting and dead. No row on the path of an ordinary message is ever
updated, and every search begins where the last one ended. PostgreSQL cannot remove dead rows while any transaction is open;
here nothing scans them, so a long transaction elsewhere makes nothing slower.

Transactions may commit in another order than that of their positions. `xid` says which transaction wrote a row, so rows that
became visible behind the last hand-out are found without reading others.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from unpoison.port import table_versions
from unpoison.port.table_versions import BROKERS_TABLES, Tables

PGConnection = psycopg.Connection[tuple[Any, ...]]

_V1 = """
create sequence unpoison_positions;
create table unpoison_sources (
    no integer generated always as identity primary key, name text not null unique);
create table unpoison_line (
    source integer not null, position bigint not null default nextval('unpoison_positions'),
    xid xid8 not null default pg_current_xact_id(), id text not null, key text, headers text, body bytea not null,
    published timestamptz not null default statement_timestamp(), primary key (source, position));
create index unpoison_line_xid on unpoison_line (source, xid);
create table unpoison_handed (
    source integer not null, no bigint not null, upto bigint not null, seen pg_snapshot not null, primary key (source, no));
create table unpoison_waiting (
    no bigint generated always as identity primary key, source integer not null, due timestamptz not null, owner integer,
    alone boolean not null default false, counters text, id text not null, key text, headers text, body bytea not null,
    published timestamptz not null default statement_timestamp());
create index unpoison_waiting_due on unpoison_waiting (source, alone, due) where owner is null;
create index unpoison_waiting_owned on unpoison_waiting (owner) where owner is not null;
create table unpoison_leases (
    first bigint primary key, last bigint not null, source integer not null, owner integer not null, seen pg_snapshot not null);
create index unpoison_leases_owner on unpoison_leases (owner);
create table unpoison_owners (
    no integer generated always as identity primary key, host text not null, pid integer not null,
    is_locked boolean not null, since timestamptz not null default statement_timestamp(), until timestamptz not null);
create table unpoison_settled (
    lease bigint not null, at bigint not null, owner integer not null, primary key (owner, lease, at));
create table unpoison_dead (
    no bigint generated always as identity primary key, source integer not null, state text not null, replays integer not null,
    fingerprint text not null, id text not null, key text, headers text, body bytea not null, record text not null);
create index unpoison_dead_state on unpoison_dead (source, state, no)
"""

MIGRATIONS: tuple[str, ...] = (_V1,)
"""Entry n takes a database from version n to n + 1. Entries are only ever added."""

TABLES = (*re.findall(r"create table (\w+)", "".join(MIGRATIONS)), "unpoison_version")
SEQUENCE = "unpoison_positions"

_LACKING = """
select rights || ' on ' || string_agg(relname, ', ' order by relname) from (
    select relname, (select string_agg(wanted, ', ' order by n)
        from unnest(case when relname = 'unpoison_version' then '{select}' else '{select,insert,update,delete}'::text[] end)
        with ordinality as needed (wanted, n) where not has_table_privilege(%(role)s::name, oid, wanted)) as rights
    from pg_class where relname = any (%(tables)s) and pg_table_is_visible(oid)) as found
where rights is not null group by rights
union all
select 'usage on sequence ' || relname from pg_class where relname = %(sequence)s and pg_table_is_visible(oid)
    and not has_sequence_privilege(%(role)s::name, oid, 'usage') order by 1
"""

NEW_SOURCE = """\
with made as (insert into unpoison_sources (name) values (%s) on conflict do nothing returning no)
insert into unpoison_handed select no, 0, 0, pg_current_snapshot() from made"""
"""Gives a source its number, unless it has one."""


def source_statement(source: str) -> str:
    """`NEW_SOURCE` on one line, to be run by hand."""
    return NEW_SOURCE.replace("\n", " ").replace("%s", sql.quote(source)) + ";"


def migrate(
    connection: PGConnection, where: str, *, create: bool, migrations: tuple[str, ...] = MIGRATIONS, sources: Sequence[str] = ()
) -> None:
    """Bring the database to this version, or refuse it. The error names the statements that create the sources too."""
    lines = "".join(f"\n{source_statement(source)}" for source in sources)
    more = f"\nThen create the sources {', '.join(map(repr, sources))}:{lines}" if lines else ""
    table_versions.migrate(connection, version, alone, migrations, where, create=create, more=more)


@contextmanager
def alone(connection: PGConnection, tables: Tables = BROKERS_TABLES) -> Iterator[PGConnection]:
    """A transaction in which nobody else migrates these tables."""
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(hashtext(%s))", (tables.version_in,))
        yield connection


def version(connection: PGConnection, tables: Tables = BROKERS_TABLES) -> int:
    """The version of these tables; 0 where there are none."""
    # Not to_regclass: its cache may not know yet what another session has just committed.
    there = "select from pg_catalog.pg_class where relname = %s and pg_catalog.pg_table_is_visible(oid)"
    if connection.execute(there, (tables.version_in,)).fetchone() is None:
        return 0
    row = connection.execute(sql.SQL("select version from {}").format(sql.Identifier(tables.version_in))).fetchone()
    return int(row[0]) if row else 0


def lacking(connection: PGConnection, role: str) -> list[str]:
    """The rights that a role needs and does not have, as `grant` takes them. The role must exist."""
    values = {"role": role, "tables": list(TABLES), "sequence": SEQUENCE}
    return [rights for (rights,) in connection.execute(_LACKING, values).fetchall()]


def statements(since: int = 0) -> str:
    """The statements for people's own migrations, from version `since`."""
    return table_versions.migration_script(MIGRATIONS, since)
