"""How are dead letters kept, looked at and sent again in a SQLite file?

Every change is one transaction that first checks that the letter still waits: of two operators only one gets it, and a
crash at any moment leaves it either where it was or where it was sent.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Sequence

from unpoison import stored
from unpoison.brokers.sqlite.broker import SQLiteBroker
from unpoison.deadletters.record import DeadLetter

_NUMBER = re.compile("[1-9][0-9]{0,17}")


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
        low, high = self._no(after) if after else 0, self._no(until) if until else 2**62
        if only is not None:
            low, high = self._no(only) - 1, self._no(only)
        with self.broker.reading() as run:
            # The index has the letters of one state in order; for those of all states the table itself has them.
            table, states = ("unpoison_dead", "state = ?") if state else ("unpoison_dead not indexed", "? is null")
            where = f"source = ? and {states} and no > ? and no <= ?"
            query = f"select {stored.LETTER_COLUMNS} from {table} where {where} order by no limit ?"
            return [stored.letter(self._source, row) for row in run.execute(query, (self._number, state, low, high, limit))]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        with self.broker.writing() as run:
            return [letter_id for letter_id in letter_ids if self._replay_one(run, letter_id)]

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        change = "update unpoison_dead set state = :keep_as" if keep_as else "delete from unpoison_dead"
        where = "where no = :no and source = :source and state = :state"
        with self.broker.writing() as run:
            values = {"source": self._number, "state": state, "keep_as": keep_as}
            return [id_ for id_ in letter_ids if run.execute(f"{change} {where}", {**values, "no": self._no(id_)}).rowcount]

    def _replay_one(self, run: sqlite3.Connection, letter_id: str) -> bool:
        """Claim the letter by changing its state, then put the message back; both or neither."""
        no = self._no(letter_id)
        claim = "update unpoison_dead set state = 'replayed' where no = ? and source = ? and state = 'dead'"
        if not run.execute(claim, (no, self._number)).rowcount:
            return False
        row = run.execute(f"select {stored.LETTER_COLUMNS} from unpoison_dead where no = ?", (no,)).fetchone()
        counters = stored.letter(self._source, row).replayed()
        run.execute(
            "insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body, published) "
            "select source, ?, ?, ?, id, key, headers, body, ? from unpoison_dead where no = ?",
            (self._clock(), counters.alone, stored.counters_text(counters), self._clock(), no),
        )
        return True

    @property
    def _number(self) -> int:
        return self.broker.number(self._source)

    def _no(self, letter_id: str) -> int:
        """The number at the end of a letter's id; 0, which no letter has, for an id that is not of this DLQ."""
        source, _, number = letter_id.rpartition("-")
        return int(number) if source == self._source and _NUMBER.fullmatch(number) else 0
