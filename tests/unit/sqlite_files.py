"""How do the tests of the SQLite broker open files and look into them?"""

import sqlite3
from contextlib import closing
from pathlib import Path

from unpoison.brokers.sqlite.broker import SQLiteBroker


def opened(file: Path, *sources: str, **options) -> SQLiteBroker:
    broker = SQLiteBroker(f"sqlite:///{file}")
    broker.open(sources, **options)
    return broker


def query(file: Path, statement: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


def dump(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        return "\n".join(connection.iterdump())
