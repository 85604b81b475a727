"""The DLQ of a source in a PostgreSQL database."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from unpoison.brokers.postgresql import rows
from unpoison.brokers.postgresql.broker import PostgreSQLBroker
from unpoison.brokers.postgresql.schema import PGConnection
from unpoison.model.message import Counters
from unpoison.port.serialization import counters_text
from unpoison.port.sql import SentBack, SQLDeadLetters

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

_PUT_IN = """
insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body)
values (%s, statement_timestamp(), %s, %s, %s, %s, %s, %s)
"""


class PostgreSQLDeadLetters(SQLDeadLetters[PostgreSQLBroker, PGConnection]):
    """The DLQ of one source in the database. Each step has a time limit: a person waits for it."""

    mark = "%s"

    @property
    def number(self) -> int:
        with self.broker.connection.limited("looking for the source"):
            return super().number

    def rows(self, what: str, query: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
        with self.broker.connection.limited(what), self.broker.connection.use() as run:
            return run.execute(query, values, binary=True).fetchall()

    @contextmanager
    def changing(self, what: str) -> Iterator[PGConnection]:
        with self.broker.connection.limited(what), self.broker.connection.transaction() as run:
            yield run

    def claim(self, run: PGConnection, numbers: Sequence[int], state: str, columns: str) -> Sequence[Sequence[Any]]:
        values = {"source": self.number, "state": state, "numbers": numbers}
        return run.execute(_LOCK.format(columns=columns), values, binary=True).fetchall()

    def change(self, run: PGConnection, numbers: Sequence[int], state: str | None) -> None:
        change = "delete from unpoison_dead" if state is None else "update unpoison_dead set state = %(state)s"
        run.execute(f"{change} where {_LOCKED}", {"numbers": numbers, "state": state})

    def put_back(self, run: PGConnection, again: Mapping[int, Counters]) -> None:
        alone = [counters.alone for counters in again.values()]
        columns = {"numbers": list(again), "alone": alone, "counters": list(map(counters_text, again.values()))}
        run.execute(_PUT_BACK, columns)
        run.execute(rows.NOTIFY, (self.number,))

    def put_in(self, run: PGConnection, messages: Sequence[SentBack]) -> None:
        with run.cursor() as cursor:
            cursor.executemany(_PUT_IN, [(self.number, *message) for message in messages])
        run.execute(rows.NOTIFY, (self.number,))
