"""How do letters come into the store: each once, and counted?

Letters and what is counted of them are written in one transaction (`turns.py`), so a crash leaves both or neither.
"""

from collections.abc import Iterable, Sequence

from unpoison.model.dead_letter import WholeLetter
from unpoison.store.letters.counts import Changes
from unpoison.store.letters.rows import CONTENTS, LETTER, Prepared, prepared
from unpoison.store.letters.turns import Turns, take_numbers, take_turn
from unpoison.store.letters.values import Ingested
from unpoison.store.rows import Execute, insert

CHUNK, CHUNK_BYTES = 32, 256 * 1024
"""Letters, and bytes, that are written before the next look at the clock."""


def put(turns: Turns, letters: Sequence[WholeLetter]) -> Ingested:
    total = Ingested()

    def write(run: Execute, letters: Sequence[Prepared], changes: Changes, now: float) -> None:
        nonlocal total
        total = _sum(total, _write(run, letters, changes, now))

    turns.each(_chunks(map(prepared, letters)), write)
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
    take_turn(run)
    there = _known(run, letters)
    new: dict[tuple[str, str, str], Prepared] = {}
    for letter in letters:
        if letter.identity not in there:
            new.setdefault(letter.identity, letter)
    twins = _twins(run, new.values())
    marked, rows, contents = 0, [], []
    for number, letter in enumerate(new.values(), take_numbers(run, len(new)) if new else 0):
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
