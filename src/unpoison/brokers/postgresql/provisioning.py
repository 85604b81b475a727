"""What an administrator must create in a PostgreSQL database, and grant to the role of the app."""

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

import psycopg
from psycopg import conninfo, sql

from unpoison.brokers.postgresql import schema
from unpoison.brokers.postgresql.connection import connect, parameters
from unpoison.brokers.postgresql.errors import explained
from unpoison.errors import UnpoisonError
from unpoison.port.broker_url import masked
from unpoison.port.provisioning import Needs, Step, no_user

SETUP = """\
# How the owner of the schema logs in: PGUSER=owner PGPASSWORD=… sh FILE, or a line in ~/.pgpass
database={database}
sql() {{ psql -X -q -1 -v ON_ERROR_STOP=1 -f - "$database"; }}"""

PLACE = ("host", "hostaddr", "port", "dbname", "options", "sslmode", "sslrootcert", "target_session_attrs")
"""Parameters of the URL that say where the database is, and not who the app is."""


class Existing(NamedTuple):
    """What exists, as far as this role can see."""

    version: int = 0
    sources: frozenset[str] = frozenset()
    is_allowed: bool = False
    unseen: str = ""


def needs(url: str, sources: Sequence[str], user: str | None = None) -> Needs:
    user = user or parameters(url).get("user")
    existing = _look(url, user)
    steps = [_tables(existing), *(_source(existing, source) for source in sources)]
    if user:
        steps.append(_rights(existing, user))
    notes = () if user else (no_user("a role"),)
    return Needs(f"PostgreSQL at {masked(url)}", steps, setup(url), existing.unseen, notes)


def setup(url: str) -> tuple[str, ...]:
    """What comes first in a script for this database."""
    known = parameters(url)
    database = conninfo.make_conninfo(**{name: known[name] for name in PLACE if known.get(name)})
    return tuple(SETUP.format(database=quote(database)).splitlines())


def _tables(existing: Existing) -> Step:
    newest = len(schema.MIGRATIONS)
    why = f"the tables of unpoison, version {newest}, created in the first schema of the search path."
    there_is = "select from pg_class where relname = 'unpoison_version' and pg_table_is_visible(oid)"
    guard = [f"select not exists ({there_is}) as absent \\gset", "\\if :absent"]
    lines = schema.statements(existing.version).splitlines()
    lines = lines if existing.version else [*guard, *lines, "\\endif"]
    return Step("tables", "unpoison_…", why, in_psql(lines), existing.version == newest)


def _source(existing: Existing, source: str) -> Step:
    why = "the number under which its messages are kept."
    return Step("source", source, why, in_psql([schema.source_statement(source)]), source in existing.sources)


def _rights(existing: Existing, user: str) -> Step:
    role = sql.Identifier(user).as_string(None)
    written = ", ".join(name for name in schema.TABLES if name != "unpoison_version")
    lines = [
        "select current_schema() as place \\gset",
        f'grant usage on schema :"place" to {role};',
        f"grant select, insert, update, delete on {written} to {role};",
        f"grant select on unpoison_version to {role};",
        f"grant usage on sequence {schema.SEQUENCE} to {role};",
    ]
    why = "to publish, consume, retry, dead-letter and replay. The role must exist."
    return Step("rights", user, why, in_psql(lines), existing.is_allowed)


def in_psql(lines: Sequence[str]) -> tuple[str, ...]:
    """These statements as lines of the script."""
    return ("sql <<'SQL'", *lines, "SQL")


def _look(url: str, user: str | None) -> Existing:
    try:
        with explained(url), connect(url) as run:
            version = schema.version(run)
            if version == 0:
                return Existing()
            names = run.execute("select name from unpoison_sources").fetchall()
            return Existing(version, frozenset(name for (name,) in names), bool(user) and _is_allowed(run, str(user)))
    except (UnpoisonError, psycopg.Error) as error:
        return Existing(unseen=str(error))


def _is_allowed(run: schema.PGConnection, role: str) -> bool:
    query = "select has_schema_privilege(oid, current_schema(), 'usage') from pg_roles where rolname = %s"
    return run.execute(query, (role,)).fetchone() == (True,) and not schema.lacking(run, role)
