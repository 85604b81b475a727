"""What is wrong with this database, as far as this role may see? Everything is asked in transactions that cannot write."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

import psycopg

from unpoison.brokers.postgresql import schema
from unpoison.brokers.postgresql.connection import connect, explained, parameters, where
from unpoison.brokers.postgresql.doctor import activity, settings, tables
from unpoison.brokers.postgresql.schema import Connection
from unpoison.port import findings
from unpoison.port.broker import Finding

NAMES = (*settings.NAMES, *tables.NAMES, *activity.NAMES, *findings.NAMES)
DEEP = ()

Check = Callable[[Connection], Iterator[Finding]]


def examine(  # every broker is asked the same
    url: str,
    sources: Sequence[str],
    longest: float | None,  # noqa: ARG001
    *,
    deep: bool = False,  # noqa: ARG001
) -> Sequence[Finding]:
    """All that is found in this database. Nothing here takes long, so `deep` adds nothing."""
    parameters(url)
    shown = where(url)
    with explained(url), closing(connect(url)) as connection:
        found = _every(connection, {"the settings of the server": partial(settings.findings_of, shown)})
        version = _version(connection, shown, found)
        if version == 0:
            found += _every(connection, {"the rights of this role": partial(tables.may_create, shown)})
        elif version is not None:
            found += _every(connection, tables.checks(sources, shown))
        return found + _every(connection, activity.CHECKS)


def known_sources(url: str) -> Sequence[str]:
    """The sources that this database has been used for."""
    parameters(url)
    with explained(url), closing(connect(url)) as connection:
        if schema.version(connection) == 0:
            return []
        return [name for (name,) in connection.execute("select name from unpoison_sources order by name").fetchall()]


def adopted(url: str, source: str) -> Sequence[Finding]:  # noqa: ARG001 - all sources share the tables
    with explained(url), closing(connect(url)) as connection:
        return _every(connection, {"whether the tables survive a crash": tables.of_storage})


def _version(connection: Connection, shown: str, found: list[Finding]) -> int | None:
    """The version of the tables, with what it means noted. None if this role may not ask."""
    versions: list[int] = []

    def look(run: Connection) -> Iterator[Finding]:
        versions.append(schema.version(run))
        yield from findings.of_version(versions[0], len(schema.MIGRATIONS), shown)

    found += _every(connection, {"the version of the tables": look})
    return versions[0] if versions else None


def _every(connection: Connection, checks: dict[str, Check]) -> list[Finding]:
    """Each check by itself: one that this role may not make does not keep the others from being made."""
    found: list[Finding] = []
    for what, check in checks.items():
        try:
            with connection.transaction():
                connection.execute("set transaction read only")
                found += check(connection)
        except psycopg.errors.InsufficientPrivilege as error:
            said = str(error.diag.message_primary or error)
            fix = (
                "Ask as a role that may read the tables of unpoison, or grant this one the rights that docs/postgresql.md lists."
            )
            found.append(findings.cannot_look(what, f"The server said: {said}.", fix))
    return found
