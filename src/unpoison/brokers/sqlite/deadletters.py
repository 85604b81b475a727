"""The DLQ of a source in a SQLite file."""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from unpoison.brokers.sqlite.broker import SQLiteBroker
from unpoison.model.message import Counters
from unpoison.port.serialization import counters_text
from unpoison.port.sql import SentBack, SQLDeadLetters

_PUT_BACK = (
    "insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body, published) "
    "select source, ?, ?, ?, id, key, headers, body, ? from unpoison_dead where no = ?"
)
_PUT_IN = (
    "insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body, published) "
    "values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# One statement for any number of letters. Each is found by its number, not in the index, which has all letters of a state.
_LETTERS = "unpoison_dead not indexed"
_THESE = "no in (select value from json_each(?))"


class SQLiteDeadLetters(SQLDeadLetters[SQLiteBroker, sqlite3.Connection]):
    """The DLQ of one source in the file. A transaction that writes is alone: what it has found stays as it is."""

    mark = "?"
    body_size = "length(body)"
    any_state = _LETTERS  # the index sorts the letters of one state

    def rows(self, what: str, query: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
        with self.broker.reading() as run:
            return run.execute(query, values).fetchall()

    def changing(self, what: str) -> AbstractContextManager[sqlite3.Connection]:
        return self.broker.writing()

    def claim(self, run: sqlite3.Connection, numbers: Sequence[int], state: str, columns: str) -> Sequence[Sequence[Any]]:
        query = f"select {columns} from {_LETTERS} where {_THESE} and source = ? and state = ? order by no"
        return run.execute(query, (_array(numbers), self.number, state)).fetchall()

    def change(self, run: sqlite3.Connection, numbers: Sequence[int], state: str | None) -> None:
        if state is None:
            run.execute(f"delete from {_LETTERS} where {_THESE}", (_array(numbers),))
        else:
            run.execute(f"update {_LETTERS} set state = ? where {_THESE}", (state, _array(numbers)))

    def put_back(self, run: sqlite3.Connection, again: Mapping[int, Counters]) -> None:
        now = time.time()
        run.executemany(_PUT_BACK, [(now, each.alone, counters_text(each), now, no) for no, each in again.items()])

    def put_in(self, run: sqlite3.Connection, messages: Sequence[SentBack]) -> None:
        now = time.time()
        run.executemany(_PUT_IN, [(self.number, now, *message, now) for message in messages])


def _array(numbers: Sequence[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
