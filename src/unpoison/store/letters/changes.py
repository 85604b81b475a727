"""How are letters changed that have been selected, so that none is changed that somebody else has changed first?

Letters are changed chunk by chunk, each with its counts and its entry in the audit log in one transaction (`turns.py`).
"""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from unpoison.model.verdict import STATES
from unpoison.store.letters import audit
from unpoison.store.letters.claims import claimed_by_others
from unpoison.store.letters.counts import Changes, Kind
from unpoison.store.letters.turns import Turns, take_turn
from unpoison.store.letters.values import DELETED, NOTE, OWNER, STATE, Change, Changed, Progress, Selection
from unpoison.store.rows import Execute

CHUNK = 50
"""Letters that are changed before the next look at the clock."""

_FOUND = "no, fingerprint, source, classification, state, traceback, note, owner"


class LetterChanges:
    """Changes letters in a database."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def change(
        self, selection: Selection, change: Change, by: str, progress: Progress | None = None, claimant: str = ""
    ) -> Changed:
        """What somebody else than the `claimant` is sending back is not moved and not deleted meanwhile."""
        checked(change)
        edges = [*range(0, selection.count, CHUNK), selection.count]
        chunks = [list(selection.numbers[start:end]) for start, end in pairwise(edges)]
        done, handled = array("q"), 0

        def write(run: Execute, chunk: Sequence[int], changes: Changes, now: float) -> None:
            nonlocal handled
            take_turn(run)
            if change.what in (STATE, DELETED):
                claimed = claimed_by_others(run, chunk, claimant, now)
                before = _changed(run, [number for number in chunk if number not in claimed], change, changes)
            else:
                before = _changed(run, chunk, change, changes)
            if before:
                was = audit.by_value(before)
                letters, about = len(before), selection.where
                audit.note(run, now, who=by, what=change.what, about=about, letters=letters, before=was, after=change.to)
            done.extend(before)
            handled += len(chunk)
            if progress:
                progress(handled, selection.count)

        self._turns.each(chunks, write)
        return Changed(len(done), selection.count - len(done), done)


def checked(change: Change) -> None:
    if change.what not in (STATE, NOTE, OWNER, DELETED):
        raise ValueError(
            f"A letter has no {change.what!r} that can be changed. It is one of {STATE}, {NOTE}, {OWNER}, {DELETED}."
        )
    if change.what == STATE and change.to not in STATES:
        raise ValueError(f"{change.to!r} is no state of a letter. It is one of {', '.join(STATES)}.")


def _changed(run: Execute, numbers: Sequence[int], change: Change, changes: Changes) -> dict[int, object]:
    """Change those of these letters that are as they have to be for that, in our turn. Returns what they were."""
    marks = ", ".join("?" * len(numbers))
    found = run(f"select {_FOUND} from unpoison_letters where no in ({marks}) order by no", numbers).fetchall()
    found = [row for row in found if change.only in (None, row[4])]
    match change.what:
        case "state":
            return _moved(run, found, str(change.to), changes)
        case "deleted":
            return _deleted(run, found, changes)
    column = 6 if change.what == NOTE else 7
    before = {row[0]: row[column] for row in found if row[column] != change.to}
    _update(run, change.what, change.to, list(before))
    return before


def _moved(run: Execute, rows: Sequence[Sequence[Any]], to: str, changes: Changes) -> dict[int, object]:
    """Only a letter that waits is replayed or discarded, and only one that does not is restored. One that was replayed counts
    that: sent again it is another message to the broker, and not the same one twice."""
    before = {row[0]: row[4] for row in rows if (row[4] == "dead") != (to == "dead")}
    for row in rows:
        if row[0] in before:
            changes.move(Kind(*row[1:5]), to)
    _update(run, "state", to, list(before))
    if sent := [number for number, was in before.items() if was == "replayed"]:
        run(f"update unpoison_letters set replays = replays + 1 where no in ({', '.join('?' * len(sent))})", sent)
    return before


def _deleted(run: Execute, rows: Sequence[Sequence[Any]], changes: Changes) -> dict[int, object]:
    numbers = [row[0] for row in rows]
    if numbers:
        marks = ", ".join("?" * len(numbers))
        run(f"delete from unpoison_letter_contents where no in ({marks})", numbers)
        run(f"delete from unpoison_letter_originals where no in ({marks})", numbers)
        run(f"delete from unpoison_letters where no in ({marks})", numbers)
    for row in rows:
        changes.remove(row[0], Kind(*row[1:5]), None if row[5] is None else bytes(row[5]))
    return {row[0]: row[4] for row in rows}


def _update(run: Execute, column: str, value: str | None, numbers: Sequence[int]) -> None:
    if numbers:
        run(f"update unpoison_letters set {column} = ? where no in ({', '.join('?' * len(numbers))})", (value, *numbers))
