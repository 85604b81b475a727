"""Which settings of a server, or of a role, lose messages or keep them from being written?"""

from collections.abc import Iterator
from typing import NamedTuple

from psycopg import sql

from unpoison.brokers.postgresql.connection import SWITCHED_OFF, is_pooled
from unpoison.brokers.postgresql.schema import Connection
from unpoison.port.broker import Finding

NAMES = (
    "fsync-off",
    "full-page-writes-off",
    "synchronous-commit-off",
    "autovacuum-off",
    "read-only-replica",
    "read-only-default",
    "behind-pooler",
)

RELOAD = "select pg_reload_conf();"


class Setting(NamedTuple):
    """What holds for new sessions of this role here, and where that was set."""

    value: str
    source: str


def findings_of(shown: str, run: Connection) -> Iterator[Finding]:
    asked = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum", "default_transaction_read_only")
    # What a new session begins with: this one may have been given something else.
    rows = run.execute("select name, reset_val, source from pg_settings where name = any (%s)", (list(asked),)).fetchall()
    found = {name: Setting(value, source) for name, value, source in rows}
    yield from _of_durability(run, found)
    yield from _of_writing(run, found, shown)
    if found["autovacuum"].value == "off":
        yield Finding(
            "autovacuum-off",
            "The server runs with autovacuum = off. Deleted rows of finished messages are never removed: the tables grow until "
            "the disk is full, and in the end the server refuses to write.",
            f"Switch it on:\n{_switch(run, 'autovacuum', 'on', found['autovacuum'])}",
        )
    yield from _of_pooler(run)


def _of_durability(run: Connection, found: dict[str, Setting]) -> Iterator[Finding]:
    if found["fsync"].value == "off":
        yield Finding(
            "fsync-off",
            "The server runs with fsync = off: it never makes sure that anything reaches the disk. A power cut or a crash of the "
            "host loses messages whose publish was confirmed, and can leave the whole database beyond repair.",
            f"Switch it on:\n{_switch(run, 'fsync', 'on', found['fsync'])}",
            loses=True,
        )
    if found["full_page_writes"].value == "off":
        yield Finding(
            "full-page-writes-off",
            "The server runs with full_page_writes = off. A power cut in the middle of a write leaves a page that is half old "
            "and half new, which nothing repairs: confirmed messages on it are lost or altered.",
            f"Switch it on:\n{_switch(run, 'full_page_writes', 'on', found['full_page_writes'])}",
            loses=True,
        )
    if found["synchronous_commit"].value == "off":
        yield Finding(
            "synchronous-commit-off",
            "Sessions of this role begin with synchronous_commit = off: a publish is confirmed before it is on disk. A crash of "
            "the server loses what was confirmed just before.",
            f"Take the default again:\n{_switch(run, 'synchronous_commit', 'on', found['synchronous_commit'])}",
            loses=True,
        )


def _of_writing(run: Connection, found: dict[str, Setting], shown: str) -> Iterator[Finding]:
    read_only = "default_transaction_read_only"
    if run.execute("select pg_is_in_recovery()").fetchone() == (True,):
        yield Finding(
            "read-only-replica",
            f"The server behind {shown} is a replica, which only reads: nothing can be published or consumed there.",
            "Point the URL at the primary. A URL that names all hosts, separated by commas, finds it by itself with:\n"
            f"{shown}{'&' if '?' in shown else '?'}target_session_attrs=read-write",
            stops=True,
        )
    elif found[read_only].value == "on":
        yield Finding(
            "read-only-default",
            "Sessions of this role begin with default_transaction_read_only = on: nothing can be published or consumed.",
            f"Take the default again:\n{_switch(run, read_only, 'off', found[read_only])}",
            stops=True,
        )


def _of_pooler(run: Connection) -> Iterator[Finding]:
    if not is_pooled(run):
        return
    query = "select name from pg_settings where name = any (%s) and setting <> 'off' order by name"
    still_on = [name for (name,) in run.execute(query, (list(SWITCHED_OFF),)).fetchall()]
    role = _names(run)[0]
    advice = "If latency matters, give unpoison a URL that leads to the server itself."
    if still_on:
        lines = "\n".join(f"alter role {role} set {name} = off;" for name in still_on)
        advice += f" To keep the planner from reading a whole queue for one fetch, also:\n{lines}"
    yield Finding(
        "behind-pooler",
        "A connection pooler answers at this URL. It works, but sessions are not ours there: new messages are seen by looking "
        "every 0.1 s, and a consumer that vanished is noticed after 30 s and not within half a second.",
        advice,
    )


def _switch(run: Connection, name: str, value: str, setting: Setting) -> str:
    """The statement that undoes a setting, wherever it was made."""
    role, database = _names(run)
    match setting.source:
        case "user":
            return f"alter role {role} reset {name};"
        case "database":
            return f"alter database {database} reset {name};"
        case "database user":
            return f"alter role {role} in database {database} reset {name};"
        case "client":
            return f"remove {name} from the options in the URL, or from PGOPTIONS"
        case _:
            return f"alter system set {name} = {value};\n{RELOAD}"


def _names(run: Connection) -> tuple[str, str]:
    row = run.execute("select current_user, current_database()").fetchone() or ("", "")
    return sql.Identifier(row[0]).as_string(run), sql.Identifier(row[1]).as_string(run)
