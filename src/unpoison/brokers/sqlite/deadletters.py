"""The DLQ of a source in a SQLite file.

Every change is one transaction that first checks the state of the letter: of two operators only one gets it, and a crash at
any moment leaves it either where it was or where it was sent.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from unpoison.brokers.sqlite.broker import SQLiteBroker
from unpoison.model.dead_letter import DeadLetter
from unpoison.port import serialization
from unpoison.port.sql import LetterIds

AT_ONCE = 500
"""Letters of one statement. SQLite limits the number of its values."""

_WITHOUT_BODY = serialization.LETTER_COLUMNS.replace("body", "x''")
_PUT_BACK = (
    "insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body, published) "
    "select source, ?, ?, ?, id, key, headers, body, ? from unpoison_dead where no = ?"
)


class SQLiteDeadLetters:
    """The DLQ of one source in the file."""

    def __init__(self, broker: SQLiteBroker, source: str, *, clock: Callable[[], float] = time.time) -> None:
        self.broker, self._source, self._clock = broker, source, clock
        self._ids = LetterIds(source)

    def count(self, state: str = "dead") -> int:
        with self.broker.reading() as run:
            query = "select count(*) from unpoison_dead where source = ? and state = ?"
            return int(run.execute(query, (self._number, state)).fetchone()[0])

    def freeze(self) -> str:
        with self.broker.reading() as run:
            row = run.execute("select max(no) from unpoison_dead where source = ?", (self._number,)).fetchone()
            return self._ids.of(row[0] or 0)

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        if only is not None:
            return self._only(only, state)
        return self._letters(*self._between(after, until, state), limit)

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = "dead") -> Sequence[str]:
        table, where, values = self._between(after, until, state)
        with self.broker.reading() as run:
            found = run.execute(f"select no from {table} where {where} order by no limit ?", (*values, limit))
            return [self._ids.of(no) for (no,) in found]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """Claim each letter by changing its state, then put its message back; all in one transaction."""
        sent: set[int] = set()
        with self.broker.writing() as run:
            for part in _parts(self._ids.numbers(letter_ids)):
                where, values = self._these(part, "dead")
                found = run.execute(f"select {_WITHOUT_BODY} from unpoison_dead where {where}", values).fetchall()
                run.execute(f"update unpoison_dead set state = 'replayed' where {where}", values)
                run.executemany(_PUT_BACK, [self._put_back(row) for row in found])
                sent |= {row[0] for row in found}
        return self._ids.among(letter_ids, sent)

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        change = "update unpoison_dead set state = ?" if keep_as else "delete from unpoison_dead"
        changed: set[int] = set()
        with self.broker.writing() as run:
            for part in _parts(self._ids.numbers(letter_ids)):
                where, values = self._these(part, state)
                changed |= {no for (no,) in run.execute(f"select no from unpoison_dead where {where}", values)}
                run.execute(f"{change} where {where}", [keep_as, *values] if keep_as else values)
        return self._ids.among(letter_ids, changed)

    def _only(self, id_: str, state: str | None) -> Sequence[DeadLetter]:
        for column, value in (("no", self._ids.number(id_)), ("id", id_)):
            where = f"source = ? and (? is null or state = ?) and {column} = ?"
            if found := self._letters("unpoison_dead not indexed", where, (self._number, state, state, value), 100):
                return found
        return []

    def _letters(self, table: str, where: str, values: Sequence[Any], limit: int) -> Sequence[DeadLetter]:
        query = f"select {serialization.LETTER_COLUMNS} from {table} where {where} order by no limit ?"
        with self.broker.reading() as run:
            return [serialization.letter(self._source, row) for row in run.execute(query, (*values, limit))]

    def _between(self, after: str, until: str, state: str | None) -> tuple[str, str, Sequence[Any]]:
        """Table, condition and its values. The index sorts the letters of one state; the table itself those of all states."""
        table, states = ("unpoison_dead", "state = ?") if state else ("unpoison_dead not indexed", "? is null")
        return table, f"source = ? and {states} and no > ? and no <= ?", (self._number, state, *self._ids.between(after, until))

    def _these(self, numbers: Sequence[int], state: str) -> tuple[str, Sequence[Any]]:
        return f"no in ({', '.join('?' * len(numbers))}) and source = ? and state = ?", [*numbers, self._number, state]

    def _put_back(self, row: Sequence[Any]) -> Sequence[Any]:
        counters = serialization.letter(self._source, row).replayed()
        return self._clock(), counters.alone, serialization.counters_text(counters), self._clock(), row[0]

    @property
    def _number(self) -> int:
        return self.broker.numbers[self._source]


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), AT_ONCE):
        yield numbers[first : first + AT_ONCE]
