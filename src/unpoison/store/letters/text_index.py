"""Which letters can have this text in them, without looking into each?

An index of all groups of three characters (`fts5.py`, `pg_trgm.py`) answers that for a text that is rare: with the numbers of a
few letters that may have it, which SQL then asks exactly. Of a text that is common it says nothing; then going through the
letters in their order soon finds some. Tracebacks are not in it: there are few different ones, and they are asked themselves.

The index is behind the letters until somebody calls `index`; letters that it does not have yet are all named. In SQLite what was
deleted stays in it and is found no more, since no number is given twice.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from unpoison.filters.matching import fold
from unpoison.filters.terms import And, Condition, Pattern, Term, Word
from unpoison.store.letters.bodies import JSON, PACKED_TEXT, TEXT, Kept, body_of
from unpoison.store.letters.columns import as_column
from unpoison.store.letters.filter_sql import compiled
from unpoison.store.letters.turns import take_turn
from unpoison.store.letters.values import TextIndexState
from unpoison.store.rows import Execute
from unpoison.store.sql_store import LetterDatabase

MOST_NAMED = 5_000
"""Letters that are named. A text that more of them have is common."""
LEAST = 3
"""Characters that a text must have to be looked for in the index."""
MOST_AT_ONCE = 500
AT_ONCE_BYTES = 2**20
_FIELDS, _INDEXED = ("error", "body", "traceback"), ("key", "id")
_TEXTS = """
select l.no, l.error_type, l.error, l.letter_id, l.message_id, l.key, c.form, c.body_text, c.body, l.size
from unpoison_letters l left join unpoison_letter_contents c on c.no = l.no where l.no > ? order by l.no limit ?
"""


class TextIndex:
    """The index of one database."""

    def __init__(self, database: LetterDatabase, clock: Callable[[], float] = time.perf_counter) -> None:
        self._database, self._clock = database, clock
        self._at_once = 16

    def state(self) -> TextIndexState:
        with self._database.reading() as run:
            if not self._database.text_index.is_there(run):
                return TextIndexState(False, _newest(run))
            return TextIndexState(True, max(0, _newest(run) - _upto(run)))

    def index(self, seconds: float | None = None) -> TextIndexState:
        """Add letters that it does not have yet: for so long, or all. Others can write in between."""
        self._database.make_text_index()
        until = None if seconds is None else self._clock() + seconds
        while self._step() and (until is None or self._clock() < until):
            pass
        return self.state()

    def _step(self) -> bool:
        """Add some letters. Their number follows the time for which the last ones kept others out."""
        with self._database.reading() as run:
            if not self._database.text_index.is_there(run):
                return False
            upto = _upto(run)
            rows = _within(run(_TEXTS, (upto, self._at_once)).fetchall())
        if not rows:
            return False
        texts = [(row[0], _text(row)) for row in rows]
        with self._database.writing(durable=False) as run:
            began = self._clock()
            take_turn(run)
            if run("update unpoison_letter_search_upto set upto = ? where upto = ?", (texts[-1][0], upto)).rowcount == 1:
                self._database.text_index.add(run, texts)
        taken = max(self._clock() - began, 1e-6)
        fitting = min(len(rows) * self._database.most_held / 2 / taken, MOST_AT_ONCE)
        self._at_once = min(max(1, round(fitting)), 2 * self._at_once)
        return True

    def candidates(self, run: Execute, term: Term) -> Sequence[int] | None:
        """The numbers of the letters that can match; None if they are many, or if the index cannot tell."""
        terms = [each for each in (term.terms if isinstance(term, And) else (term,)) if _asks_for_text(each)]
        if not terms or not self._database.text_index.is_there(run):
            return None
        upto, newest = _upto(run), _newest(run)
        if upto == 0 or newest - upto > MOST_NAMED:
            return None
        found = [numbers for each in terms if (numbers := self._numbers(run, each)) is not None]
        return [*min(found, key=len), *range(upto + 1, newest + 1)] if found else None

    def _numbers(self, run: Execute, term: Term) -> list[int] | None:
        """Of letters that can match; None if they are too many, or if the text is too short for the index."""
        assert isinstance(term, Word | Condition)  # noqa: S101 - for the type checker
        found: set[int] = set()
        if not (isinstance(term, Condition) and term.field == "traceback"):
            pattern = term.pattern if isinstance(term, Word) else term.value
            pieces = _pieces(pattern) if isinstance(pattern, Pattern) else []
            if not pieces or self._database.text_index.is_common(run, pieces):
                return None
            finding = self._database.text_index.finding(pieces)
            found |= {number for (number,) in run(f"{finding.text} limit {MOST_NAMED + 1}", finding.values).fetchall()}
        if isinstance(term, Word) or term.field == "traceback":
            found |= set(_by_traceback(run, term))
        return sorted(found) if len(found) <= MOST_NAMED else None


def _upto(run: Execute) -> int:
    """The number of the last letter that is in the index."""
    return int(run("select upto from unpoison_letter_search_upto", ()).fetchall()[0][0])


def _newest(run: Execute) -> int:
    return int(run("select coalesce(max(no), 0) from unpoison_letters", ()).fetchall()[0][0])


def _within(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The first of them, as far as they are not too large together."""
    size, found = 0, list[Sequence[Any]]()
    for row in rows:
        size += row[9]
        if found and size > AT_ONCE_BYTES:
            break
        found.append(row)
    return found


def _text(row: Sequence[Any]) -> str:
    """All that a word is looked for in, but the traceback."""
    _, error_type, error, letter_id, message_id, key, form, text, data, _ = row
    body = ""
    if form in (JSON, TEXT):
        body = str(text)
    elif form == PACKED_TEXT and isinstance(data, bytes):
        body = body_of(Kept(form, None, data)).decode("utf-8", "replace")
    return fold("\n".join([f"{error_type}: {error}", str(letter_id), str(message_id), str(key or ""), body]))


def _asks_for_text(term: Term) -> bool:
    match term:
        case Word():
            return True
        case Condition(value=Pattern(), operator=(":" | "="), path=()):
            return term.field in _FIELDS or (term.field in _INDEXED and isinstance(term.value, Pattern) and term.value.has_stars)
    return False


def _by_traceback(run: Execute, term: Word | Condition) -> list[int]:
    anywhere = Pattern(("", *(piece for piece in term.pattern.pieces if piece), "")) if isinstance(term, Word) else None
    asked = Condition("traceback", ":", anywhere) if anywhere else term
    bounds = compiled(asked, 0.0, _not_asked)
    query = f"select l.no from unpoison_letters l where {bounds.upper.text} limit {MOST_NAMED + 1}"
    return [number for (number,) in run(query, bounds.upper.values).fetchall()]


def _not_asked(*_: object) -> None:
    """A traceback has no values that are few."""


def _pieces(pattern: Pattern) -> list[str]:
    """Pieces of a text that are long enough to be looked for, as the index has them."""
    return [as_column(fold(piece)) for piece in pattern.pieces if len(piece) >= LEAST]
