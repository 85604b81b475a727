"""Checks of the doctor for the server: settings that lose messages or stop writes, and activity that will delay messages."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from psycopg import sql

from unpoison.brokers.postgresql.connection import SWITCHED_OFF, is_pooled
from unpoison.brokers.postgresql.schema import PGConnection
from unpoison.port import findings
from unpoison.port.broker import Finding
from unpoison.port.findings import Check, loss, stop

RELOAD = "select pg_reload_conf();"


class Setting(NamedTuple):
    """The value with which new sessions of this role begin, and the statement that resets it where it was set."""

    value: str
    reset: str


SETTINGS = (
    loss(
        "fsync-off",
        lambda of: of["fsync"].value == "off",
        "The server runs with fsync = off: it never makes sure that anything reaches the disk. A power cut or a crash of the "
        "host loses messages whose publish was confirmed, and can leave the whole database beyond repair.",
        "Switch it on:\n{of[fsync].reset}",
    ),
    loss(
        "full-page-writes-off",
        lambda of: of["full_page_writes"].value == "off",
        "The server runs with full_page_writes = off. A power cut in the middle of a write leaves a page that is half old "
        "and half new, which nothing repairs: confirmed messages on it are lost or altered.",
        "Switch it on:\n{of[full_page_writes].reset}",
    ),
    loss(
        "synchronous-commit-off",
        lambda of: of["synchronous_commit"].value == "off",
        "Sessions of this role begin with synchronous_commit = off: a publish is confirmed before it is on disk. A crash of "
        "the server loses what was confirmed just before.",
        "Restore the default:\n{of[synchronous_commit].reset}",
    ),
    stop(
        "read-only-replica",
        lambda of: of["is_replica"],
        "The server behind {of[shown]} is a replica, which only reads: nothing can be published or consumed there.",
        "Point the URL at the primary. A URL that names all hosts, separated by commas, finds it with:\n{of[primary]}",
    ),
    stop(
        "read-only-default",
        lambda of: of["default_transaction_read_only"].value == "on" and not of["is_replica"],
        "Sessions of this role begin with default_transaction_read_only = on: nothing can be published or consumed.",
        "Restore the default:\n{of[default_transaction_read_only].reset}",
    ),
    Check(
        "autovacuum-off",
        lambda of: of["autovacuum"].value == "off",
        "The server runs with autovacuum = off. Deleted rows of finished messages are never removed: the tables grow until "
        "the disk is full, and in the end the server refuses to write.",
        "Switch it on:\n{of[autovacuum].reset}",
    ),
)

_ON = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum")
_DEFAULTS = {**dict.fromkeys(_ON, "on"), "default_transaction_read_only": "off"}

_OF_TRANSACTIONS = ("long-transaction", "idle-in-transaction", "old-prepared-transaction", "transaction-ids-running-out")
NAMES = (*findings.names_of(SETTINGS), "behind-pooler", *_OF_TRANSACTIONS, "connections-running-out")


def of_settings(shown: str, run: PGConnection) -> Iterator[Finding]:
    # `reset_val` is what a new session begins with: this one may have been given something else.
    query = "select name, reset_val, source from pg_settings where name = any (%s)"
    found = run.execute(query, (list(_DEFAULTS),)).fetchall()
    facts: dict[str, Any] = {name: Setting(value, _reset(run, name, source)) for name, value, source in found}
    facts["is_replica"] = run.execute("select pg_is_in_recovery()").fetchone() == (True,)
    facts["shown"] = shown
    facts["primary"] = f"{shown}{'&' if '?' in shown else '?'}target_session_attrs=read-write"
    yield from findings.examine(SETTINGS, facts)
    yield from _of_pooler(run)


def _of_pooler(run: PGConnection) -> Iterator[Finding]:
    if not is_pooled(run):
        return
    query = "select name from pg_settings where name = any (%s) and setting <> 'off' order by name"
    still_on = [name for (name,) in run.execute(query, (list(SWITCHED_OFF),)).fetchall()]
    role = _names(run)[0]
    advice = "If latency matters, give unpoison a URL of the server itself."
    if still_on:
        lines = "\n".join(f"alter role {role} set {name} = off;" for name in still_on)
        advice += f" To keep the planner from reading a whole queue for one fetch, also:\n{lines}"
    yield Finding(
        "behind-pooler",
        "A connection pooler answers at this URL. It works, but its sessions are shared: new messages are found by a look "
        "every 0.1 s, and a consumer that vanished is noticed after 30 s instead of within half a second.",
        advice,
    )


def _reset(run: PGConnection, name: str, source: str) -> str:
    """The statement that resets a setting, wherever it was set."""
    role, database = _names(run)
    match source:
        case "user":
            return f"alter role {role} reset {name};"
        case "database":
            return f"alter database {database} reset {name};"
        case "database user":
            return f"alter role {role} in database {database} reset {name};"
        case "client":
            return f"remove {name} from the options in the URL, or from PGOPTIONS"
        case _:
            return f"alter system set {name} = {_DEFAULTS[name]};\n{RELOAD}"


def _names(run: PGConnection) -> tuple[str, str]:
    row = run.execute("select current_user, current_database()").fetchone() or ("", "")
    return sql.Identifier(row[0]).as_string(run), sql.Identifier(row[1]).as_string(run)


LONG = 15 * 60.0
"""Seconds after which an open transaction is reported."""

OLD_IDS = 1_000_000_000
"""Transactions since the oldest row was frozen. At about twice as many the server refuses to write."""

NEARLY_ALL = 0.9
"""The share of connections in use that is reported."""

SHOWN = 5
"""How many are named; the others are counted."""

_OPEN = """
select pid, usename, application_name, coalesce(client_addr::text, 'this host'),
    extract(epoch from clock_timestamp() - xact_start)::float8,
    state like 'idle in transaction%%'
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
    and xact_start < clock_timestamp() - %s * interval '1 second'
order by xact_start
"""
_COSTS = (
    "While it is open, PostgreSQL removes no deleted row in this database: the tables of unpoison, and all others, grow. "
    "Messages that it published itself are delivered only when it commits."
)


def _of_transactions(run: PGConnection) -> Iterator[Finding]:
    hidden = "select count(*) from pg_stat_activity where datname = current_database() and query = '<insufficient privilege>'"
    (unseen,) = run.execute(hidden).fetchone() or (0,)
    if unseen:
        (role,) = run.execute("select current_user").fetchone() or ("",)
        yield findings.cannot_look(
            "transactions that are open for long",
            f"The role {role!r} may not see what {unseen} sessions of other roles do.",
            f"As a superuser:\ngrant pg_read_all_stats to {sql.Identifier(role).as_string(run)};",
        )
    found = run.execute(_OPEN, (LONG,)).fetchall()
    busy, idle = [row for row in found if not row[5]], [row for row in found if row[5]]
    if busy:
        yield Finding(
            "long-transaction",
            f"A transaction has been open for a long time: {_who(busy)}. {_COSTS}",
            f"See what it does and end it if you can:\n{_ends(busy)}",
        )
    if idle:
        limit = f"alter database {_names(run)[1]} set idle_in_transaction_session_timeout = '10min';"
        yield Finding(
            "idle-in-transaction",
            f"A transaction is open and idle, as when a program forgot to commit: {_who(idle)}. {_COSTS}",
            f"See what it did last and end it; the last line makes the server do so in future:\n{_ends(idle)}\n{limit}",
        )


def _who(rows: Sequence[tuple[Any, ...]]) -> str:
    named = [
        f"process {pid} of {role!r} from {place} ({name or 'no name'}), for {seconds / 60:,.0f} min"
        for pid, role, name, place, seconds, _ in rows[:SHOWN]
    ]
    return "; ".join(named) + _more(rows)


def _more(rows: Sequence[tuple[Any, ...]]) -> str:
    return f"; and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""


def _ends(rows: Sequence[tuple[Any, ...]]) -> str:
    pids = [row[0] for row in rows[:SHOWN]]
    look = f"select pid, query from pg_stat_activity where pid in ({', '.join(map(str, pids))});"
    return "\n".join([look, *(f"select pg_terminate_backend({pid});" for pid in pids)])


def _of_prepared(run: PGConnection) -> Iterator[Finding]:
    query = (
        "select gid, owner, extract(epoch from clock_timestamp() - prepared)::float8 from pg_prepared_xacts "
        "where database = current_database() and prepared < clock_timestamp() - %s * interval '1 second' order by prepared"
    )
    found = run.execute(query, (LONG,)).fetchall()
    if found:
        who = "; ".join(f"{gid!r} of {owner!r}, for {seconds / 60:,.0f} min" for gid, owner, seconds in found[:SHOWN])
        yield Finding(
            "old-prepared-transaction",
            f"A prepared transaction was neither committed nor rolled back: {who}{_more(found)}. It outlives restarts and "
            f"keeps its locks. {_COSTS}",
            "Ask its transaction manager whether to commit it (commit prepared). To roll it back:\n"
            + "\n".join(f"rollback prepared {sql.Literal(gid).as_string(run)};" for gid, _, _ in found[:SHOWN]),
        )


def _of_ids(run: PGConnection) -> Iterator[Finding]:
    query = "select age(datfrozenxid) from pg_database where datname = current_database()"
    (age,) = run.execute(query).fetchone() or (0,)
    if age > OLD_IDS:
        yield Finding(
            "transaction-ids-running-out",
            f"The oldest row of this database is {age:,} transactions old: vacuum does not keep up. At about 2,100,000,000 "
            f"the server refuses every write: nothing can be published or settled.",
            "End old transactions and drop unused replication slots. Then, as a superuser:\nvacuum (freeze, verbose);",
        )


def _of_connections(run: PGConnection) -> Iterator[Finding]:
    query = (
        "select (select sum(numbackends) from pg_stat_database)::integer, current_setting('max_connections')::integer, "
        "current_setting('superuser_reserved_connections')::integer "
        "+ coalesce(current_setting('reserved_connections', true), '0')::integer"
    )
    used, most, reserved = run.execute(query).fetchone() or (0, 1, 0)
    if used >= NEARLY_ALL * (most - reserved):
        yield Finding(
            "connections-running-out",
            f"{used} of the {most - reserved} connections for ordinary roles are in use. A consumer needs two for each "
            f"source, and a process that publishes one. When none is left, consumers pause and publish raises.",
            f"Put a pooler in front, or allow more, which needs a restart of the server:\n"
            f"alter system set max_connections = {2 * most};",
        )


ACTIVITY_CHECKS: dict[str, Callable[[PGConnection], Iterator[Finding]]] = {
    "transactions that are open for long": _of_transactions,
    "prepared transactions": _of_prepared,
    "the age of transaction ids": _of_ids,
    "how many connections are in use": _of_connections,
}
