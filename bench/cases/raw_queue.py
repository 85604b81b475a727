"""What would a careful person write by hand? A queue in a SQLite table, with the columns and the durability that unpoison has.

Statements are constants, so that sqlite3 keeps them prepared; every step is one transaction; a lease names its owner, and
only the owner removes what it leased, so that several of these loops could share the table.
"""

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

BATCH = 100
OWNER = 1

TABLE = (
    "create table queue (position integer primary key, id text not null, key text, headers text, body blob not null, "
    "published real not null, lease integer)"
)
INSERT = "insert into queue (id, key, headers, body, published) values (?, ?, ?, ?, ?)"

_NEXT = f"where lease is null order by position limit {BATCH}"
_LEASE = f"update queue set lease = ? where position in (select position from queue {_NEXT}) returning position, body"
_LOOK = f"select position, body from queue {_NEXT}"
_LEASE_RANGE = "update queue set lease = ? where position between ? and ? and lease is null"
_REMOVE = "delete from queue where position between ? and ? and lease = ?"
_FIRST = f"select position, body from queue order by position limit {BATCH}"
_REMOVE_FIRST = "delete from queue where position between ? and ?"

Rows = list[tuple[int, bytes]]
Handle = Callable[[dict[str, Any]], None]


def opened(file: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute(f"pragma synchronous={synchronous}")
    return connection


def create(file: Path, rows: Iterable[tuple[Any, ...]] = ()) -> None:
    """A file with the table and these rows, closed again, so that the write-ahead log is empty."""
    connection = opened(file, "normal")
    connection.execute(TABLE)
    connection.execute("begin")
    connection.executemany(INSERT, rows)
    connection.execute("commit")
    connection.close()


def lease_and_delete(file: Path, handle: Handle) -> int:
    """The usual way: one statement leases a hundred rows and returns them; when they are handled they are deleted."""
    return _drain(file, handle, lambda run: run(_LEASE, (OWNER,)).fetchall())


def lease_range_and_delete(file: Path, handle: Handle) -> int:
    """The same, tuned: rows are read, and then leased as a range. Fewer steps inside SQLite than the one statement above."""

    def lease(run: Callable[..., sqlite3.Cursor]) -> Rows:
        rows = run(_LOOK).fetchall()
        if rows:
            run(_LEASE_RANGE, (OWNER, rows[0][0], rows[-1][0]))
        return rows

    return _drain(file, handle, lease)


def _drain(file: Path, handle: Handle, lease: Callable[[Callable[..., sqlite3.Cursor]], Rows]) -> int:
    connection, decode, done = opened(file, "normal"), msgspec.json.Decoder().decode, 0
    run = connection.execute
    while True:
        run("begin immediate")
        rows = lease(run)
        run("commit")
        if not rows:
            break
        for _, body in rows:
            handle(decode(body))
        run("begin immediate")
        run(_REMOVE, (rows[0][0], rows[-1][0], OWNER))
        run("commit")
        done += len(rows)
    connection.close()
    return done


def pop(file: Path, handle: Handle) -> int:
    """No lease: one transaction per batch, open while handlers run, so nobody else can publish or consume meanwhile."""
    connection, decode, done = opened(file, "normal"), msgspec.json.Decoder().decode, 0
    run = connection.execute
    while True:
        run("begin immediate")
        rows = run(_FIRST).fetchall()
        if rows:
            run(_REMOVE_FIRST, (rows[0][0], rows[-1][0]))
        for _, body in rows:
            handle(decode(body))
        run("commit")
        if not rows:
            break
        done += len(rows)
    connection.close()
    return done
