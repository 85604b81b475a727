"""What must an administrator create for a store, and grant to the role of the app? For a file: nothing."""

import psycopg
from psycopg import sql

from unpoison.brokers.postgresql import schema
from unpoison.brokers.postgresql.connection import connect, parameters
from unpoison.brokers.postgresql.provisioning import in_psql, setup
from unpoison.errors import ConfigError
from unpoison.port.broker_url import masked
from unpoison.port.provisioning import Needs, Step, no_user
from unpoison.store.postgresql import explained
from unpoison.store.schema import MIGRATIONS_OF_POSTGRESQL as MIGRATIONS
from unpoison.store.schema import OURS, TABLES, statements

_WRITTEN = ", ".join(name for name in TABLES if name != OURS.version_in)
_IS_ALLOWED = """
select bool_and(has_schema_privilege(r.oid, current_schema(), 'usage') and has_table_privilege(r.oid, c.oid, needed))
from pg_roles r, pg_class c, unnest('{select, insert, update, delete}'::text[]) needed
where rolname = %(role)s and relname = any (%(tables)s) and pg_table_is_visible(c.oid)
    and (needed = 'select' or relname <> %(version)s)
"""


def needs(url: str, user: str | None = None) -> Needs:
    """Of a store in PostgreSQL. A server that cannot be reached is no error: then nothing is known to exist."""
    user = user or parameters(url).get("user")
    found, is_allowed, unseen = _look(url, user)
    steps = [_tables(found)]
    if user:
        steps.append(_rights(user, exists=is_allowed))
    return Needs(f"the store in PostgreSQL at {masked(url)}", steps, setup(url), unseen, () if user else (no_user("a role"),))


def _tables(found: int) -> Step:
    newest = len(MIGRATIONS)
    why = f"the tables of the store, version {newest}, created in the first schema of the search path."
    there_is = f"select from pg_class where relname = '{OURS.version_in}' and pg_table_is_visible(oid)"
    guard = [f"select not exists ({there_is}) as absent \\gset", "\\if :absent"]
    lines = statements(MIGRATIONS, found).splitlines()
    return Step("tables", "unpoison_…", why, in_psql(lines if found else [*guard, *lines, "\\endif"]), found == newest)


def _rights(user: str, *, exists: bool) -> Step:
    role = sql.Identifier(user).as_string(None)
    lines = [
        "select current_schema() as place \\gset",
        f'grant usage on schema :"place" to {role};',
        f"grant select, insert, update, delete on {_WRITTEN} to {role};",
        f"grant select on {OURS.version_in} to {role};",
    ]
    why = "to share pauses, outages and signs of life with other consumers. The role must exist."
    return Step("rights", user, why, in_psql(lines), exists)


def _look(url: str, user: str | None) -> tuple[int, bool, str]:
    """The version of the tables, whether the role may use them, and why that cannot be seen if it cannot."""
    try:
        with connect(url) as run:
            found = schema.version(run, OURS)
            values = {"role": user, "tables": list(TABLES), "version": OURS.version_in}
            is_allowed = bool(user) and found > 0 and run.execute(_IS_ALLOWED, values).fetchone() == (True,)
            return found, is_allowed, ""
    except ConfigError as error:
        return 0, False, str(error)
    except psycopg.Error as error:
        return 0, False, explained(error, url)
