"""The tables of the store, and their migrations. They are the same in SQLite and in PostgreSQL.

    pauses         sources that are paused, by whom and why; one row for each kind of pause
    circuits       dependencies that are down, and when the next probe is due
    consumers      signs of life
    code_versions  when the store first saw each version of the code

A store may be in the same database as a broker. So its tables have a version of their own, in `unpoison_store_version`. Times are
seconds since 1970.
"""

import re

from unpoison.port import table_versions

_V1 = """
create table unpoison_pauses (
    source text not null, kind text not null, reason text not null, paused_by text not null, since double precision not null,
    code_version text, evidence text not null, primary key (source, kind));
create table unpoison_circuits (
    source text not null, dependency text not null, is_named boolean not null, state text not null,
    since double precision not null, messages integer not null, samples text not null,
    next_probe_at double precision not null, probe_interval double precision not null, told_by text not null,
    revision integer not null, heard_at double precision not null, rate double precision not null,
    primary key (source, dependency));
create table unpoison_consumers (
    source text not null, consumer text not null, code_version text, started_at double precision not null,
    seen_at double precision not null, state text not null, primary key (source, consumer));
create table unpoison_code_versions (
    source text not null, code_version text not null, first_seen double precision not null, primary key (source, code_version))
"""

MIGRATIONS: tuple[str, ...] = (_V1,)
"""Entry n takes a database from version n to n + 1. Entries are only ever added."""

OURS = table_versions.Tables("store tables", "unpoison_store_version")

TABLES = (*re.findall(r"create table (\w+)", "".join(MIGRATIONS)), OURS.version_in)


def statements(since: int = 0) -> str:
    """The statements for people's own migrations, from version `since`."""
    return table_versions.migration_script(MIGRATIONS, since, OURS)
