"""What would a careful person write by hand? A queue in a SQLite table, with the columns and the durability that bezoar has.

Statements are constants, so that sqlite3 keeps them prepared; every step is one transaction; what is next to each other is
updated and deleted as one range, the fastest of the ways that were tried.
"""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BATCH = 100

TABLE = (
    "create table queue (position integer primary key, id text not null, key text, headers text, body blob not null, "
    "published real not null, lease integer)"
)
INSERT = "insert into queue (id, key, headers, body, published) values (?, ?, ?, ?, ?)"


def opened(folder: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute(f"pragma synchronous={synchronous}")
    return connection


def create(folder: Path, rows: Iterable[tuple[Any, ...]] = ()) -> None:
    """A file with the table and these rows, closed again, so that the write-ahead log is empty."""
    connection = opened(folder, "normal")
    connection.execute(TABLE)
    connection.execute("begin")
    connection.executemany(INSERT, rows)
    connection.execute("commit")
    connection.close()
