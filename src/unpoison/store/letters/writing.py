"""How do letters come into the store: each once, and counted?

Letters and what is counted of them are written in one transaction (`turns.py`), so a crash leaves both or neither.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from unpoison.model.dead_letter import WholeLetter
from unpoison.store.letters.claims import check
from unpoison.store.letters.counts import Changes
from unpoison.store.letters.rows import CONTENTS, LETTER, Prepared, prepared
from unpoison.store.letters.turns import Turns, take_numbers, take_turn
from unpoison.store.letters.values import Ingested, Turn
from unpoison.store.rows import Execute, insert

CHUNK, CHUNK_BYTES = 32, 256 * 1024
"""Letters, and bytes, that are written before the next look at the clock."""


def put(
    turns: Turns, letters: Iterable[WholeLetter], turn: Turn | None = None, may: Callable[[Execute], None] = lambda _: None
) -> Ingested:
    """`may` is asked in each transaction whether these letters may be written as they are."""
    total = Ingested()

    def write(run: Execute, letters: Sequence[Prepared], changes: Changes, now: float) -> None:
        nonlocal total
        take_turn(run)
        if turn is not None:
            check(run, turn)
        may(run)
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
    new = _new(run, letters)
    twins = _twins(run, new.values())
    marked, rows, contents, sealed = 0, [], [], list[tuple[int, bytes]]()
    for number, letter in enumerate(new.values(), take_numbers(run, len(new)) if new else 0):
        twin = None
        if letter.digest is not None:
            twin = twins.setdefault(letter.digest, number)
            twin = None if twin == number else twin
        marked += twin is not None
        rows.append(letter.row(number, now, twin))
        contents.append((number, *letter.contents))
        if letter.sealed is not None:
            sealed.append((number, letter.sealed))
        changes.add(letter, number, now)
    insert(run, f"unpoison_letters ({LETTER})", rows)
    insert(run, f"unpoison_letter_contents ({CONTENTS})", contents)
    insert(run, "unpoison_letter_originals (no, sealed)", sealed)
    return Ingested(len(new), len(letters) - len(new), marked)


Identity = tuple[str, str, str]


def _new(run: Execute, letters: Sequence[Prepared]) -> dict[Identity, Prepared]:
    """Those that the store does not have."""
    known = _known(run, letters)
    new, other = _told_apart(letters, known)
    if other:
        new |= _told_apart(other, _known(run, other))[0]
    return new


def _told_apart(
    letters: Sequence[Prepared], known: Mapping[Identity, tuple[object, ...]]
) -> tuple[dict[Identity, Prepared], list[Prepared]]:
    """The new ones among them, and those that are other letters than the known ones of their identity, renamed."""
    new: dict[Identity, Prepared] = {}
    other: list[Prepared] = []
    for letter in letters:
        facts = known.get(letter.identity) or (new[letter.identity].facts if letter.identity in new else None)
        if facts is None:
            new[letter.identity] = letter
        elif not _is_one(facts, letter.facts):
            other.append(letter.renamed())
    return new, other


def _is_one(known: tuple[object, ...], arrived: tuple[object, ...]) -> bool:
    """Whether the store has this letter. It may have been replayed and restored since: then it counts more replays."""
    *same, replays = known
    *facts, replays_then = arrived
    return same == facts and int(str(replays)) >= int(str(replays_then))


def _known(run: Execute, letters: Sequence[Prepared]) -> dict[Identity, tuple[object, ...]]:
    """The facts of those whose identity the store has already. While it is our turn, no other writer adds one."""
    by_place: dict[tuple[str, str], list[str]] = {}
    for letter in letters:
        by_place.setdefault(letter.identity[:2], []).append(letter.letter_id)
    found: dict[Identity, tuple[object, ...]] = {}
    for place, ids in by_place.items():
        query = (
            "select letter_id, failed_at, message_id, replays from unpoison_letters "
            f"where source = ? and place = ? and letter_id in ({', '.join('?' * len(ids))})"
        )
        found |= {(*place, row[0]): tuple(row[1:]) for row in run(query, (*place, *ids)).fetchall()}
    return found


def _twins(run: Execute, letters: Iterable[Prepared]) -> dict[bytes, int]:
    """The first letter of an equal message, for letters that have no identity."""
    digests = [letter.digest for letter in letters if letter.digest is not None]
    if not digests:
        return {}
    query = f"select digest, min(no) from unpoison_letters where digest in ({', '.join('?' * len(digests))}) group by digest"
    return {bytes(digest): number for digest, number in run(query, digests).fetchall()}
