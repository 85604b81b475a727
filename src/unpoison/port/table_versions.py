"""Which version do tables in a database have, and how do they come to the newest one? For brokers and stores alike."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

from unpoison.errors import ConfigError


class Tables(NamedTuple):
    """A set of tables with a version of its own: what they are called, and the table that has their version."""

    called: str = "tables"
    version_in: str = "unpoison_version"


BROKERS_TABLES = Tables()


class NotCreated(ConfigError):
    """There is no file yet, or no table in it, and create=False forbids creating them."""


def check_version(found: int, newest: int, where: str, *, create: bool, more: str = "", tables: Tables = BROKERS_TABLES) -> None:
    """Refuse tables of a newer unpoison and, with create=False, tables that would have to be created or changed."""
    if found > newest:
        raise ConfigError(
            f"{where!r} was written by a newer unpoison ({tables.called} of version {found}, this one knows {newest}). "
            f"Nothing was changed. Upgrade unpoison here, or use another URL."
        )
    if found < newest and not create:
        what = f"has unpoison {tables.called} of version {found}" if found else f"has no {tables.called} of unpoison"
        raise (ConfigError if found else NotCreated)(
            f"{where!r} {what}, this unpoison needs version {newest}, and create=False forbids creating them. Run: "
            f"unpoison migrate URL, or take the statements for your own migrations from: unpoison migrate --sql URL{more}"
        )


def migration_script(migrations: Sequence[str], since: int = 0, tables: Tables = BROKERS_TABLES) -> str:
    """The statements for people's own migrations, from version `since`. Each but the last of a migration ends a line."""
    begin = [f"create table if not exists {tables.version_in} (version integer not null);"]
    end = [f"delete from {tables.version_in};", f"insert into {tables.version_in} values ({len(migrations)});"]
    return "\n".join([*begin, *(f"{script.strip().removesuffix(';')};" for script in migrations[since:]), *end])


class Runs(Protocol):
    """A connection of either client."""

    def execute(self, statement: str, /) -> object: ...


R = TypeVar("R", bound=Runs)


def migrate(
    run: R,
    version: Callable[[R, Tables], int],
    alone: Callable[[R], AbstractContextManager[R]],
    migrations: Sequence[str],
    where: str,
    *,
    create: bool,
    more: str = "",
    tables: Tables = BROKERS_TABLES,
) -> None:
    """Bring the tables to the newest version, or refuse them. Safe to run in several processes at once.

    `alone` is a transaction in which no other process migrates. `more` ends the advice where there are no tables.
    """
    found, newest = version(run, tables), len(migrations)
    if found == newest:
        return
    check_version(found, newest, where, create=create, more="" if found else more, tables=tables)
    with alone(run):
        found = version(run, tables)  # again: another process may have migrated since
        check_version(found, newest, where, create=create, tables=tables)
        for statement in migration_script(migrations, found, tables).split(";\n"):
            run.execute(statement)
