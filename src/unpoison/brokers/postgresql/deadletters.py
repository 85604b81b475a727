"""How are dead letters kept, looked at and sent again in a PostgreSQL database?

Every change is one transaction that first checks that the letter still waits: of two operators only one gets it, and a
crash at any moment leaves it either where it was or where it was sent.
"""

import re
from collections.abc import Sequence

from unpoison import stored
from unpoison.brokers.postgresql import rows
from unpoison.brokers.postgresql.broker import PostgreSQLBroker
from unpoison.brokers.postgresql.schema import Connection
from unpoison.deadletters.record import DeadLetter

_NUMBER = re.compile("[1-9][0-9]{0,17}")

_PUT_BACK = """
insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body)
select source, statement_timestamp(), %(alone)s, %(counters)s, id, key, headers, body from unpoison_dead where no = %(no)s
"""


class PostgreSQLDeadLetters:
    """The DLQ of one source in the database."""

    def __init__(self, broker: PostgreSQLBroker, source: str) -> None:
        self.broker, self._source = broker, source

    def count(self, state: str = "dead") -> int:
        with self.broker.session.use() as run:
            query = "select count(*) from unpoison_dead where source = %s and state = %s"
            return int((run.execute(query, (self._number, state)).fetchone() or (0,))[0])

    def freeze(self) -> str:
        with self.broker.session.use() as run:
            row = run.execute("select max(no) from unpoison_dead where source = %s", (self._number,)).fetchone()
            return f"{self._source}-{(row and row[0]) or 0}"

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        low, high = self._no(after) if after else 0, self._no(until) if until else 2**62
        if only is not None:
            low, high = self._no(only) - 1, self._no(only)
        values = {"source": self._number, "state": state, "low": low, "high": high, "limit": limit}
        in_state = "and state = %(state)s" if state else ""
        query = (
            f"select {stored.LETTER_COLUMNS} from unpoison_dead where source = %(source)s {in_state} "
            f"and no > %(low)s and no <= %(high)s order by no limit %(limit)s"
        )
        with self.broker.session.use() as run:
            return [stored.letter(self._source, row) for row in run.execute(query, values, binary=True).fetchall()]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        with self.broker.session.transaction() as run:
            sent = [letter_id for letter_id in letter_ids if self._replay_one(run, letter_id)]
            run.execute(rows.NOTIFY, (self._number,))
            return sent

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        change = "update unpoison_dead set state = %(keep_as)s" if keep_as else "delete from unpoison_dead"
        statement = f"{change} where no = %(no)s and source = %(source)s and state = %(state)s"
        values = {"source": self._number, "state": state, "keep_as": keep_as}
        with self.broker.session.transaction() as run:
            return [id_ for id_ in letter_ids if run.execute(statement, {**values, "no": self._no(id_)}).rowcount]

    def _replay_one(self, run: Connection, letter_id: str) -> bool:
        """Claim the letter by changing its state, then put the message back; both or neither."""
        no = self._no(letter_id)
        claim = (
            "update unpoison_dead set state = 'replayed' where no = %s and source = %s and state = 'dead' "
            f"returning {stored.LETTER_COLUMNS}"
        )
        row = run.execute(claim, (no, self._number), binary=True).fetchone()
        if row is None:
            return False
        counters = stored.letter(self._source, row).replayed()
        values = {"no": no, "alone": counters.alone, "counters": stored.counters_text(counters)}
        return bool(run.execute(_PUT_BACK, values).rowcount)

    @property
    def _number(self) -> int:
        return self.broker.number(self._source)

    def _no(self, letter_id: str) -> int:
        """The number at the end of a letter's id; 0, which no letter has, for an id that is not of this DLQ."""
        source, _, number = letter_id.rpartition("-")
        return int(number) if source == self._source and _NUMBER.fullmatch(number) else 0
