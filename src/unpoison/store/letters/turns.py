"""How do writers of letters take turns without keeping others from the database?

In a SQLite file one writer keeps all others out, also the consumers of a broker in the same file. There a transaction ends as
soon as it has taken too long, and none of them is synced but the last one, which syncs them all.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from unpoison.store.letters.counts import Changes
from unpoison.store.letters.regressions import regress
from unpoison.store.rows import Execute
from unpoison.store.sql_store import LetterDatabase

Part = TypeVar("Part")


def take_turn(run: Execute) -> None:
    """Wait until no other writer changes letters, until this transaction ends."""
    run("update unpoison_letter_turn set last = last", ())


def take_numbers(run: Execute, count: int) -> int:
    """The first of so many numbers, for letters to come. Only to be called by whose turn it is."""
    run("update unpoison_letter_turn set last = last + ?", (count,))
    return int(run("select last from unpoison_letter_turn", ()).fetchall()[0][0]) - count + 1


class Turns:
    """Writes to a database in short transactions. `clock` tells how long one takes."""

    def __init__(self, database: LetterDatabase, clock: Callable[[], float] = time.perf_counter) -> None:
        self._database, self.clock = database, clock

    def each(self, parts: Iterable[Part], write: Callable[[Execute, Part, Changes, float], None]) -> None:
        """Write all parts, each in one transaction with what it changes about the counts. What is done stays done if it fails."""
        waiting = deque(parts)
        while waiting:
            with self._database.writing(durable=len(waiting) == 1) as run:
                began, changes, now = self.clock(), Changes(), self._database.now(run)
                while waiting:
                    write(run, waiting.popleft(), changes, now)
                    if len(waiting) == 1 and self._database.most_held < float("inf"):
                        break  # the last one is synced: it has a transaction of its own, which is short
                    if self.clock() - began >= self._database.most_held / 2:
                        break
                if seen := changes.write(run):
                    regress(run, seen, now)
