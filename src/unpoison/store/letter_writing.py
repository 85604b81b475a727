"""How do letters come into the store: each once, counted, and without keeping others from the database?

Letters and what is counted of them are written in one transaction, so a crash leaves both or neither. In a SQLite file one
writer keeps all others out, also the consumers of a broker in the same file: there a transaction ends as soon as it has taken too
long. None of them is synced but the last one, which syncs them all.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from unpoison.store.letter_counts import Changes
from unpoison.store.letter_rows import CONTENTS, LETTER, Prepared, prepared
from unpoison.store.letter_values import Arrival, Ingested
from unpoison.store.rows import Execute, insert
from unpoison.store.sql_store import LetterDatabase

CHUNK, CHUNK_BYTES = 32, 256 * 1024
"""Letters, and bytes, that are written before the next look at the clock."""


def take_turn(run: Execute, numbers: int = 0) -> int:
    """Wait until no other writer changes letters, until this transaction ends. Returns the last number that is taken, for so many
    letters to come."""
    run("update unpoison_letter_turn set last = last + ?", (numbers,))
    return int(run("select last from unpoison_letter_turn", ()).fetchall()[0][0]) - numbers


class Ingest:
    """Puts letters into a database."""

    def __init__(self, database: LetterDatabase, clock: Callable[[], float] = time.perf_counter) -> None:
        self._database, self._clock = database, clock

    def put(self, arrivals: Sequence[Arrival]) -> Ingested:
        waiting = deque(_chunks(map(prepared, arrivals)))
        total = Ingested()
        while waiting:
            with self._database.writing(durable=len(waiting) == 1) as run:
                began, changes, now = self._clock(), Changes(), self._database.now(run)
                while waiting:
                    total = _sum(total, _write(run, waiting.popleft(), changes, now))
                    if len(waiting) == 1 and self._database.most_held < float("inf"):
                        break  # the last one is synced: it has a transaction of its own, which is short
                    if self._clock() - began >= self._database.most_held / 2:
                        break
                changes.write(run)
        return total


def _chunks(letters: Iterable[Prepared]) -> Iterable[Sequence[Prepared]]:
    chunk: list[Prepared] = []
    size = 0
    for letter in letters:
        if chunk and (len(chunk) == CHUNK or size + letter.size > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(letter)
        size += letter.size
    if chunk:
        yield chunk


def _sum(total: Ingested, more: Ingested) -> Ingested:
    return Ingested(*(one + other for one, other in zip(total, more, strict=True)))


def _write(run: Execute, letters: Sequence[Prepared], changes: Changes, now: float) -> Ingested:
    last = take_turn(run, len(letters))
    there = _known(run, letters)
    new: dict[tuple[str, str, str], Prepared] = {}
    for letter in letters:
        if letter.identity not in there:
            new.setdefault(letter.identity, letter)
    twins = _twins(run, new.values())
    marked, rows, contents = 0, [], []
    for number, letter in enumerate(new.values(), last + 1):
        twin = None
        if letter.digest is not None:
            twin = twins.setdefault(letter.digest, number)
            twin = None if twin == number else twin
        marked += twin is not None
        rows.append(letter.row(number, now, twin))
        contents.append((number, *letter.contents))
        changes.add(letter, number, now)
    insert(run, f"unpoison_letters ({LETTER})", rows)
    insert(run, f"unpoison_letter_contents ({CONTENTS})", contents)
    return Ingested(len(new), len(letters) - len(new), marked)


def _known(run: Execute, letters: Sequence[Prepared]) -> set[tuple[str, str, str]]:
    """The identities of those that the store has already. While it is our turn, no other writer adds one."""
    by_place: dict[tuple[str, str], list[str]] = {}
    for letter in letters:
        by_place.setdefault(letter.identity[:2], []).append(letter.letter_id)
    found: set[tuple[str, str, str]] = set()
    for place, ids in by_place.items():
        marks = ", ".join("?" * len(ids))
        query = f"select letter_id from unpoison_letters where source = ? and place = ? and letter_id in ({marks})"
        found |= {(*place, letter_id) for (letter_id,) in run(query, (*place, *ids)).fetchall()}
    return found


def _twins(run: Execute, letters: Iterable[Prepared]) -> dict[bytes, int]:
    """The first letter of an equal message, for letters that have no identity."""
    digests = [letter.digest for letter in letters if letter.digest is not None]
    if not digests:
        return {}
    query = f"select digest, min(no) from unpoison_letters where digest in ({', '.join('?' * len(digests))}) group by digest"
    return {bytes(digest): number for digest, number in run(query, digests).fetchall()}
