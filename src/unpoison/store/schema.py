"""The tables of the store, and their migrations. They are the same in SQLite and in PostgreSQL, but for the names of types.

    pauses           sources that are paused, by whom and why; one row for each kind of pause
    circuits         dependencies that are down, and when the next probe is due
    consumers        signs of life, with the counts of messages so far
    code_versions    when the store first saw each version of the code
    letters          dead letters: what they are listed, searched and sorted by
    letter_contents  what of a letter is looked at one by one: body, headers, what the broker knew
    tracebacks       each text once, with the number of letters that have it
    letter_groups    one row for each fingerprint that was ever seen
    letter_counts    how many letters there are, by group, source, classification and state
    letter_hours     how many came in each hour in which they failed, for a picture of the trend
    letter_versions  which versions of the code each group was seen in
    letter_group_work  what people have noted about groups
    audit            who changed which letters and groups, when, and from what; rows are only added
    letter_search_upto  the number of the last letter in the index of texts, which is made where it is first written
    letter_search    in PostgreSQL the texts that are searched; in SQLite their index
    collectors       who moves letters of a DLQ into the store, and until when it does so without saying more
    letter_claims    letters that somebody is sending back, and until when nobody else does
    letter_turn      one row: who changes letters locks it first. It has the number of the letter that came last

A store may be in the same database as a broker. So its tables have a version of their own, in `unpoison_store_version`. Times are
seconds since 1970.

Writers of letters take turns, in PostgreSQL too: so none waits for another one that waits for it, a letter is seen before any
with a higher number is, and each change leaves the counts right.
"""

import re
from collections.abc import Sequence

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

_V2 = """
create table unpoison_letters (
    no {number} primary key, source {text} not null, place {text} not null, letter_id {text} not null, state {text} not null,
    failed_at double precision not null, first_failed_at double precision not null, arrived_at double precision not null,
    fingerprint {text} not null, classification {text} not null, error_type {text} not null, error_name {text} not null,
    error {text} not null, rule {text} not null, reason {text} not null, traceback {bytes}, message_id {text} not null,
    key {text}, attempts bigint not null, replays bigint not null, consumer {text} not null, code_version {text},
    size bigint not null, digest {bytes}, duplicate_of bigint, note {text}, owner {text});
create unique index unpoison_letters_identity on unpoison_letters (source, place, letter_id);
create index unpoison_letters_time on unpoison_letters (failed_at, no);
create index unpoison_letters_state on unpoison_letters (state, failed_at, no);
create index unpoison_letters_source on unpoison_letters (source, state, failed_at, no);
create index unpoison_letters_group on unpoison_letters (fingerprint, state, failed_at, no);
create index unpoison_letters_key on unpoison_letters (lower(key)) where key is not null;
create index unpoison_letters_id on unpoison_letters (lower(letter_id));
create index unpoison_letters_message on unpoison_letters (lower(message_id));
create index unpoison_letters_digest on unpoison_letters (digest) where digest is not null;
create table unpoison_letter_contents (
    no {number} primary key, form {text} not null, body_text {text}, body {bytes}, headers {text}, native_headers {bytes},
    native {bytes}, record {text});
create table unpoison_tracebacks (digest {bytes} primary key, letters bigint not null, traceback {text} not null);
create table unpoison_letter_groups (
    fingerprint {text} primary key, first_seen double precision not null, last_seen double precision not null,
    sample bigint, classification {text} not null, error_type {text} not null, error {text} not null);
create table unpoison_letter_counts (
    fingerprint {text} not null, source {text} not null, classification {text} not null, state {text} not null,
    letters bigint not null, primary key (fingerprint, source, classification, state));
create table unpoison_letter_hours (
    fingerprint {text} not null, source {text} not null, hour bigint not null, letters bigint not null,
    primary key (fingerprint, source, hour));
create table unpoison_letter_versions (
    fingerprint {text} not null, source {text} not null, code_version {text} not null, first_seen double precision not null,
    last_seen double precision not null, primary key (fingerprint, source, code_version));
create table unpoison_letter_turn (last bigint not null);
insert into unpoison_letter_turn values (0)
"""

_V3 = """
create table unpoison_letter_group_work (
    fingerprint {text} primary key, note {text}, owner {text}, links {text} not null, snoozed_until double precision,
    resolved_in {text}, resolved_at double precision, regressed_in {text}, regressed_at double precision);
create table unpoison_audit (
    no {number} primary key, at double precision not null, who {text} not null, what {text} not null, about {text} not null,
    letters bigint not null, before {text} not null, after {text} not null)
"""

_V4 = """
create table unpoison_letter_search_upto (upto bigint not null);
insert into unpoison_letter_search_upto values (0);
create index unpoison_letters_traceback on unpoison_letters (traceback) where traceback is not null
"""

_V5 = """
drop index unpoison_letters_key;
drop index unpoison_letters_id;
drop index unpoison_letters_message;
create index unpoison_letters_key on unpoison_letters (lower(substr(key, 1, 500))) where key is not null;
create index unpoison_letters_id on unpoison_letters (lower(substr(letter_id, 1, 500)));
create index unpoison_letters_message on unpoison_letters (lower(substr(message_id, 1, 500)));
create table unpoison_collectors (
    source {text} not null, place {text} not null, collector {text} not null, until double precision not null,
    primary key (source, place));
create table unpoison_letter_claims (
    no {number} primary key, claimed_by {text} not null, until double precision not null)
"""

_V6 = """
alter table unpoison_consumers add column done bigint not null default 0;
alter table unpoison_consumers add column failed bigint not null default 0;
alter table unpoison_consumers add column dead bigint not null default 0
"""

_V4_POSTGRESQL = (
    _V4.rstrip()
    + """;
create table unpoison_letter_search (
    no bigint primary key references unpoison_letters (no) on delete cascade, text text collate "C" not null)
"""
)

_TYPES = {"text": "text", "bytes": "blob", "number": "integer"}
_POSTGRESQL_TYPES = {"text": 'text collate "C"', "bytes": "bytea", "number": "bigint"}
"""In collation "C" case and order are what `filters/terms.py` says, whatever the locale of the database is."""

MIGRATIONS: tuple[str, ...] = (_V1, _V2.format(**_TYPES), _V3.format(**_TYPES), _V4, _V5.format(**_TYPES), _V6)
"""Entry n takes a database from version n to n + 1. Entries are only ever added."""
MIGRATIONS_OF_POSTGRESQL: tuple[str, ...] = (
    _V1,
    _V2.format(**_POSTGRESQL_TYPES),
    _V3.format(**_POSTGRESQL_TYPES),
    _V4_POSTGRESQL,
    _V5.format(**_POSTGRESQL_TYPES),
    _V6,
)
"""The same for PostgreSQL."""

OURS = table_versions.Tables("store tables", "unpoison_store_version")

TABLES = (*re.findall(r"create table (\w+)", "".join(MIGRATIONS_OF_POSTGRESQL)), OURS.version_in)


def statements(migrations: Sequence[str], since: int = 0) -> str:
    """The statements for people's own migrations, from version `since`."""
    return table_versions.migration_script(migrations, since, OURS)
