"""The doctor of PostgreSQL: what is wrong with the database, as far as this role may see. It reads and changes nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import psycopg
from psycopg import sql

from unpoison.brokers.postgresql import schema, server_checks
from unpoison.brokers.postgresql.connection import connect
from unpoison.brokers.postgresql.errors import explained
from unpoison.brokers.postgresql.owner import vanished
from unpoison.brokers.postgresql.schema import PGConnection
from unpoison.port import findings
from unpoison.port.broker import Finding
from unpoison.port.broker_url import masked

NAMES = (*server_checks.NAMES, "unlogged-tables", "missing-rights", "autovacuum-off-for-table", *findings.NAMES)
DEEP = ()

Look = Callable[[PGConnection], Iterator[Finding]]

_VISIBLE = "from pg_class where relname = any (%s) and pg_table_is_visible(oid)"
_HELD = """
select no, host, pid,
    (select count(*) from unpoison_leases, unpoison_line where unpoison_leases.owner = unpoison_owners.no
        and unpoison_line.source = unpoison_leases.source and position between first and last
        and pg_visible_in_snapshot(xid, seen))
    + (select count(*) from unpoison_waiting where unpoison_waiting.owner = unpoison_owners.no)
from unpoison_owners where no = any (%s) order by no
"""
_DEAD = """
select name, (select count(*) from unpoison_dead where unpoison_dead.source = unpoison_sources.no and state = 'dead')
from unpoison_sources order by no
"""


def examine(url: str, sources: Sequence[str], longest: float | None, *, deep: bool = False) -> Sequence[Finding]:  # noqa: ARG001
    """All findings. No check takes long, so `deep` adds none."""
    shown = masked(url)
    with explained(url), closing(connect(url)) as connection:
        found = _every(connection, {"the settings of the server": partial(server_checks.of_settings, shown)})
        version = None
        with _looking(connection, "the version of the tables", found):
            version = schema.version(connection)
            found += findings.of_version(version, len(schema.MIGRATIONS), shown)
        if version == 0:
            found += _every(connection, {"the rights of this role": partial(_may_create, shown)})
        elif version is not None:
            found += _every(connection, _table_checks(sources, shown))
        return found + _every(connection, server_checks.ACTIVITY_CHECKS)


def known_sources(url: str) -> Sequence[str]:
    """The sources that this database has been used for."""
    with explained(url), closing(connect(url)) as connection:
        if schema.version(connection) == 0:
            return []
        return [name for (name,) in connection.execute("select name from unpoison_sources order by name").fetchall()]


def adopted(url: str, source: str) -> Sequence[Finding]:  # noqa: ARG001 - all sources share the tables
    with explained(url), closing(connect(url)) as connection:
        return _every(connection, {"whether the tables survive a crash": _of_storage})


def _every(connection: PGConnection, checks: dict[str, Look]) -> list[Finding]:
    found: list[Finding] = []
    for what, check in checks.items():
        with _looking(connection, what, found):
            found += check(connection)
    return found


@contextmanager
def _looking(connection: PGConnection, what: str, found: list[Finding]) -> Iterator[None]:
    """A transaction that only reads. What this role may not see is noted in `found`, and does not stop other looks."""
    try:
        with connection.transaction():
            connection.execute("set transaction read only")
            yield
    except psycopg.errors.InsufficientPrivilege as error:
        said = str(error.diag.message_primary or error)
        fix = "Ask as a role that may read the tables of unpoison, or grant this one the rights that docs/postgresql.md lists."
        found.append(findings.cannot_look(what, f"The server said: {said}.", fix))


def _table_checks(sources: Sequence[str], shown: str) -> dict[str, Look]:
    """Checks of a database that has the tables."""
    return {
        "whether the tables survive a crash": _of_storage,
        "the rights of this role": _of_rights,
        "which sources there are": partial(_of_sources, sources, shown),
        "whether consumers have vanished": _of_vanished,
        "how many dead letters there are": partial(_of_dead_letters, sources, shown),
    }


def _may_create(shown: str, run: PGConnection) -> Iterator[Finding]:
    """A check of a database without tables."""
    query = "select current_user, current_schema(), has_schema_privilege(current_schema(), 'create')"
    role, place, may = run.execute(query).fetchone() or ("", None, False)
    if not may:
        named = sql.Identifier(place or "public").as_string(run)
        yield Finding(
            "missing-rights",
            f"The role {role!r} sees no tables of unpoison in {shown}, and may not create them in the schema {named}: "
            f"nothing can be published or consumed.",
            "Create them as the owner of the schema and grant the rights that docs/postgresql.md lists, or let the role "
            "create them:\n"
            f"grant usage, create on schema {named} to {sql.Identifier(role).as_string(run)};",
            stops=True,
        )


def _of_storage(run: PGConnection) -> Iterator[Finding]:
    query = f"select relname, relkind {_VISIBLE} and relpersistence = 'u' order by relname"
    unlogged = run.execute(query, ([*schema.TABLES, schema.SEQUENCE],)).fetchall()
    if unlogged:
        lines = [f"alter {'sequence' if kind == 'S' else 'table'} {name} set logged;" for name, kind in unlogged]
        yield Finding(
            "unlogged-tables",
            f"Unlogged: {', '.join(name for name, _ in unlogged)}. A crash of the server empties such a table: every message in "
            f"it is lost. A replica never has them.",
            "Make them ordinary tables; that locks and copies them:\n" + "\n".join(lines),
            loses=True,
        )
    query = f"select relname, reloptions {_VISIBLE} and reloptions is not null order by relname"
    found = run.execute(query, (list(schema.TABLES),)).fetchall()
    disabled = [name for name, options in found if "autovacuum_enabled" in str(options) and not _is_on(options)]
    if disabled:
        yield Finding(
            "autovacuum-off-for-table",
            f"Autovacuum is switched off for {', '.join(disabled)}. Deleted rows of finished messages stay: the tables grow "
            f"until the disk is full.",
            "Switch it on:\n" + "\n".join(f"alter table {name} reset (autovacuum_enabled);" for name in disabled),
        )


def _is_on(options: Sequence[str]) -> bool:
    values = dict(option.partition("=")[::2] for option in options)
    return values["autovacuum_enabled"] in ("on", "true", "yes", "1")


def _of_rights(run: PGConnection) -> Iterator[Finding]:
    (role,) = run.execute("select current_user").fetchone() or ("",)
    if lacking := schema.lacking(run, role):
        to = sql.Identifier(role).as_string(run)
        yield Finding(
            "missing-rights",
            f"The role {role!r} lacks: {'; '.join(lacking)}. Consumers of this role pause and its publishers fail at the first "
            f"use; nothing is lost.",
            "As the owner of the tables:\n" + "\n".join(f"grant {rights} to {to};" for rights in lacking),
            stops=True,
        )


def _of_sources(sources: Sequence[str], shown: str, run: PGConnection) -> Iterator[Finding]:
    known = [name for (name,) in run.execute("select name from unpoison_sources").fetchall()]
    yield from findings.of_sources(sources, known, shown)


def _of_vanished(run: PGConnection) -> Iterator[Finding]:
    for row in run.execute(_HELD, (vanished(run, 0),)).fetchall():
        yield findings.of_vanished(*row)


def _of_dead_letters(sources: Sequence[str], shown: str, run: PGConnection) -> Iterator[Finding]:
    counts = {name: count for name, count in run.execute(_DEAD).fetchall() if not sources or name in sources}
    yield from findings.of_dead_letters(counts, shown)
