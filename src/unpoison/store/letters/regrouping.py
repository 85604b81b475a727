"""What becomes of letters whose fingerprint is of an older version? They are grouped anew.

A new version of unpoison may tell failures apart in another way. Letters in the store then get the fingerprint that their
failure would have today, and what people have said of their group goes along.
"""

from collections.abc import Mapping, Sequence

from unpoison.model.fingerprint import is_of_this_version
from unpoison.store.letters.counts import Changes, Kind, counts
from unpoison.store.letters.noted import copy_work
from unpoison.store.letters.rows import FROM, STORED, prepared, stored
from unpoison.store.letters.turns import Turns, take_turn
from unpoison.store.letters.values import Progress
from unpoison.store.rows import Execute
from unpoison.store.sql_store import Database

AT_ONCE = 100
"""Letters that are read together, and changed in turns."""


class Regrouping:
    """Groups letters anew, in a database."""

    def __init__(self, database: Database, turns: Turns) -> None:
        self._database, self._turns = database, turns

    def regroup(self, progress: Progress | None = None) -> int:
        """Returns how many letters have another fingerprint now."""
        with self._database.reading() as run:
            old = self._old(run)
        done, total = 0, sum(old.values())
        for group in old:
            while part := self._next(group):
                done += part
                if progress:
                    progress(done, total)
        return done

    def _old(self, run: Execute) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for kind, count in counts(run).items():
            if not is_of_this_version(kind.fingerprint):
                found[kind.fingerprint] = found.get(kind.fingerprint, 0) + count
        return found

    def _next(self, group: str) -> int:
        """Give some letters of this group their new fingerprint. Returns how many there were; 0 if it has none any more."""
        count = 0

        def write(run: Execute, group: str, changes: Changes, _: float) -> None:
            nonlocal count
            take_turn(run)
            rows = run(f"select {STORED} from {FROM} where l.fingerprint = ? order by l.no limit ?", (group, AT_ONCE)).fetchall()
            count = len(rows)
            copy_work(run, group, sorted({_move(run, group, row, changes) for row in rows}))

        self._turns.each([group], write)
        return count


def _move(run: Execute, group: str, row: Sequence[object], changes: Changes) -> str:
    """Returns its new group."""
    found = stored(row)
    ready = prepared(found.whole)  # with the fingerprint that it would have today
    letter = ready.letter
    changes.remove(found.number, Kind(group, ready.source, letter.classification, letter.state), ready.traceback)
    changes.add(ready, found.number, found.arrived_at)
    run("update unpoison_letters set fingerprint = ? where no = ?", (letter.fingerprint, found.number))
    return letter.fingerprint
