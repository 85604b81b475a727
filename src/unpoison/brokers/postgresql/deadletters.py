"""The DLQ of a source in a PostgreSQL database.

Every change is one transaction that first locks the letter and checks its state: of two operators only one gets it, and a
crash at any moment leaves it either where it was or where it was sent.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from unpoison.brokers.postgresql import rows
from unpoison.brokers.postgresql.broker import PostgreSQLBroker
from unpoison.brokers.postgresql.schema import PGConnection
from unpoison.model.dead_letter import DeadLetter
from unpoison.port import serialization
from unpoison.port.sql import LetterIds

_WITHOUT_BODY = serialization.LETTER_COLUMNS.replace("body", "''::bytea")
_BETWEEN = "no > %(low)s and no <= %(high)s"
# Each letter is looked up by itself: `for update` and `offset 0` keep the planner from reading all letters to find a few.
# Every operator locks letters in the order of their numbers, so two of them cannot deadlock.
_LOCK = """
select {columns} from unnest(%(numbers)s::bigint[]) as wanted (number)
cross join lateral (
    select * from unpoison_dead where no = wanted.number and source = %(source)s and state = %(state)s for update) as letter
"""
_LOCKED = """ctid = any (array(
    select found from unnest(%(numbers)s::bigint[]) as wanted (number)
    cross join lateral (select ctid as found from unpoison_dead where no = wanted.number offset 0) as letter))"""
_PUT_BACK = """
insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body)
select source, statement_timestamp(), again.alone, again.counters, id, key, headers, body
from unnest(%(numbers)s::bigint[], %(alone)b::boolean[], %(counters)b::text[]) as again (number, alone, counters)
cross join lateral (select * from unpoison_dead where no = again.number offset 0) as letter order by number
"""


class PostgreSQLDeadLetters:
    """The DLQ of one source in the database."""

    def __init__(self, broker: PostgreSQLBroker, source: str) -> None:
        self.broker, self._source = broker, source
        self._ids = LetterIds(source)

    def count(self, state: str = "dead") -> int:
        with self._limited("counting letters") as run:
            query = "select count(*) from unpoison_dead where source = %s and state = %s"
            return int((run.execute(query, (self._number, state)).fetchone() or (0,))[0])

    def freeze(self) -> str:
        with self._limited("looking where the DLQ ends") as run:
            row = run.execute("select max(no) from unpoison_dead where source = %s", (self._number,)).fetchone()
            return self._ids.of((row and row[0]) or 0)

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        if only is not None:
            return self._letters("no = %(no)s", state, no=self._ids.number(only)) or self._letters("id = %(id)s", state, id=only)
        return self._letters(_BETWEEN, state, limit, **self._between(after, until))

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = "dead") -> Sequence[str]:
        where = f"source = %(source)s and state = %(state)s and {_BETWEEN}"
        query = f"select no from unpoison_dead where {where} order by no limit %(limit)s"
        values = {"source": self._number, "state": state, "limit": limit, **self._between(after, until)}
        with self._limited("listing letters") as run:
            return [self._ids.of(no) for (no,) in run.execute(query, values).fetchall()]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """Claim each letter by changing its state, then put its message back; all in one transaction."""
        with self._limited("replaying letters"), self.broker.connection.transaction() as run:
            found = self._locked(run, letter_ids, "dead", _WITHOUT_BODY)
            if not found:
                return []
            again = [(row[0], serialization.letter(self._source, row).replayed()) for row in found]
            columns = {
                "numbers": [no for no, _ in again],
                "alone": [counters.alone for _, counters in again],
                "counters": [serialization.counters_text(counters) for _, counters in again],
            }
            run.execute(f"update unpoison_dead set state = 'replayed' where {_LOCKED}", {"numbers": columns["numbers"]})
            run.execute(_PUT_BACK, columns)
            run.execute(rows.NOTIFY, (self._number,))
        return self._ids.among(letter_ids, set(columns["numbers"]))

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        change = "update unpoison_dead set state = %(keep_as)s" if keep_as else "delete from unpoison_dead"
        with self._limited("removing letters"), self.broker.connection.transaction() as run:
            numbers = [no for (no,) in self._locked(run, letter_ids, state, "no")]
            run.execute(f"{change} where {_LOCKED}", {"numbers": numbers, "keep_as": keep_as})
        return self._ids.among(letter_ids, set(numbers))

    def _locked(self, run: PGConnection, letter_ids: Sequence[str], state: str, columns: str) -> Sequence[tuple[Any, ...]]:
        """Those of these letters that are in this state; locked until the transaction ends."""
        values = {"source": self._number, "state": state, "numbers": self._ids.numbers(letter_ids)}
        return run.execute(_LOCK.format(columns=columns), values, binary=True).fetchall()

    @contextmanager
    def _limited(self, what: str) -> Iterator[PGConnection]:
        with self.broker.connection.limited(what), self.broker.connection.use() as run:
            yield run

    def _letters(self, where: str, state: str | None, limit: int = 100, **values: Any) -> Sequence[DeadLetter]:
        in_state = "and state = %(state)s" if state else ""
        query = (
            f"select {serialization.LETTER_COLUMNS} from unpoison_dead where source = %(source)s {in_state} and {where} "
            f"order by no limit %(limit)s"
        )
        values |= {"source": self._number, "state": state, "limit": limit}
        with self._limited("reading letters") as run:
            return [serialization.letter(self._source, row) for row in run.execute(query, values, binary=True).fetchall()]

    def _between(self, after: str, until: str) -> dict[str, int]:
        low, high = self._ids.between(after, until)
        return {"low": low, "high": high}

    @property
    def _number(self) -> int:
        return self.broker.numbers[self._source]
