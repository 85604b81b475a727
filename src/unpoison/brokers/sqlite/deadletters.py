"""How are dead letters kept, looked at and sent again in a SQLite file?

Every change is one transaction that first checks that the letter still waits: of two operators only one gets it, and a
crash at any moment leaves it either where it was or where it was sent.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from unpoison.brokers.sqlite.broker import SQLiteBroker
from unpoison.model.dead_letter import DeadLetter
from unpoison.port import serialization

AT_ONCE = 500
"""Letters of one statement. SQLite takes a limited number of values."""

_NUMBER = re.compile("[1-9][0-9]{0,17}")
_WITHOUT_BODY = serialization.LETTER_COLUMNS.replace("body", "x''")
_PUT_BACK = (
    "insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body, published) "
    "select source, ?, ?, ?, id, key, headers, body, ? from unpoison_dead where no = ?"
)


class SQLiteDeadLetters:
    """The DLQ of one source in the file."""

    def __init__(self, broker: SQLiteBroker, source: str, *, clock: Callable[[], float] = time.time) -> None:
        self.broker, self._source, self._clock = broker, source, clock

    def count(self, state: str = "dead") -> int:
        with self.broker.reading() as run:
            query = "select count(*) from unpoison_dead where source = ? and state = ?"
            return int(run.execute(query, (self._number, state)).fetchone()[0])

    def freeze(self) -> str:
        with self.broker.reading() as run:
            row = run.execute("select max(no) from unpoison_dead where source = ?", (self._number,)).fetchone()
            return f"{self._source}-{row[0] or 0}"

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
            return [f"{self._source}-{no}" for (no,) in found]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """Claim each letter by changing its state, then put its message back; all of it or nothing."""
        sent: set[int] = set()
        with self.broker.writing() as run:
            for part in _parts(self._numbers(letter_ids)):
                where, values = self._these(part, "dead")
                found = run.execute(f"select {_WITHOUT_BODY} from unpoison_dead where {where}", values).fetchall()
                run.execute(f"update unpoison_dead set state = 'replayed' where {where}", values)
                run.executemany(_PUT_BACK, [self._put_back(row) for row in found])
                sent |= {row[0] for row in found}
        return [letter_id for letter_id in letter_ids if self._no(letter_id) in sent]

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        change = "update unpoison_dead set state = ?" if keep_as else "delete from unpoison_dead"
        changed: set[int] = set()
        with self.broker.writing() as run:
            for part in _parts(self._numbers(letter_ids)):
                where, values = self._these(part, state)
                changed |= {no for (no,) in run.execute(f"select no from unpoison_dead where {where}", values)}
                run.execute(f"{change} where {where}", [keep_as, *values] if keep_as else values)
        return [letter_id for letter_id in letter_ids if self._no(letter_id) in changed]

    def _only(self, id_: str, state: str | None) -> Sequence[DeadLetter]:
        for column, value in (("no", self._no(id_)), ("id", id_)):
            where = f"source = ? and (? is null or state = ?) and {column} = ?"
            if found := self._letters("unpoison_dead not indexed", where, (self._number, state, state, value), 100):
                return found
        return []

    def _letters(self, table: str, where: str, values: Sequence[Any], limit: int) -> Sequence[DeadLetter]:
        query = f"select {serialization.LETTER_COLUMNS} from {table} where {where} order by no limit ?"
        with self.broker.reading() as run:
            return [serialization.letter(self._source, row) for row in run.execute(query, (*values, limit))]

    def _between(self, after: str, until: str, state: str | None) -> tuple[str, str, Sequence[Any]]:
        """Table, condition and its values. The index has one state's letters in order; for all states the table itself has."""
        table, states = ("unpoison_dead", "state = ?") if state else ("unpoison_dead not indexed", "? is null")
        low, high = self._no(after) if after else 0, self._no(until) if until else 2**62
        return table, f"source = ? and {states} and no > ? and no <= ?", (self._number, state, low, high)

    def _these(self, numbers: Sequence[int], state: str) -> tuple[str, Sequence[Any]]:
        return f"no in ({', '.join('?' * len(numbers))}) and source = ? and state = ?", [*numbers, self._number, state]

    def _put_back(self, row: Sequence[Any]) -> Sequence[Any]:
        counters = serialization.letter(self._source, row).replayed()
        return self._clock(), counters.alone, serialization.counters_text(counters), self._clock(), row[0]

    def _numbers(self, letter_ids: Sequence[str]) -> list[int]:
        return sorted({no for letter_id in letter_ids if (no := self._no(letter_id))})

    @property
    def _number(self) -> int:
        return self.broker.number(self._source)

    def _no(self, letter_id: str) -> int:
        """The number at the end of a letter's id; 0, which no letter has, for an id that is not of this DLQ."""
        source, _, number = letter_id.rpartition("-")
        return int(number) if source == self._source and _NUMBER.fullmatch(number) else 0


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), AT_ONCE):
        yield numbers[first : first + AT_ONCE]
