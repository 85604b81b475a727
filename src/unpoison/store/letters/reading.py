"""Which letters match, in which order, and how many are they?

SQL narrows (`filter_sql.py`); where it cannot answer exactly, the letters that are left are read and asked one by one. A filter
that looks into bodies or headers goes through the letters in windows, so that no statement takes long and progress can be told.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from unpoison.filters.matching import Predicate, Subject, cost, predicate
from unpoison.filters.terms import And, Condition, Pattern, Term
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Message
from unpoison.store.conditions import EVERY, Bounds, Sql, all_of, exactly, opaque
from unpoison.store.letters.counts import Kind, counts
from unpoison.store.letters.filter_sql import compiled, is_counted, is_point, of_few
from unpoison.store.letters.rows import FROM, STORED, stored
from unpoison.store.letters.values import Order, Page, Position, Progress, Selection, StoredLetter
from unpoison.store.rows import Execute
from unpoison.store.sql_store import Database

WINDOW = 20_000
"""Letters that one statement looks into, where it looks into bodies."""
MOST_READ, READ_BYTES = 500, 16 * 2**20
"""Letters, and bytes, that are read at once. One letter is read whatever its size."""
MOST_VALUES = 100
"""Values of a column that are named one by one."""
_SLOW = 2
_KIND = "l.fingerprint, l.source, l.classification, l.state"


def _anything(_: Subject) -> bool:
    return True


class Meant(NamedTuple):
    """What a caller asks for: a filter, the moment it is asked at, and the conditions for it. No filter means every letter.

    `is_named`: the conditions name the letters that can match, by their numbers.
    """

    term: Term | None
    now: float
    bounds: Bounds = EVERY
    asked: Predicate = _anything
    is_named: bool = False

    @property
    def is_slow(self) -> bool:
        return self.term is not None and cost(self.term) >= _SLOW and not self.is_named

    @property
    def is_counted(self) -> bool:
        """Whether letters are counted by all that this filter asks about."""
        return self.term is None or (self.bounds.is_exact and is_counted(self.term))

    def matches(self, letter: DeadLetter) -> bool:
        return self.asked(Subject(letter, self.now))


class Candidate(NamedTuple):
    """A letter that matches if it is sure, else one that may."""

    number: int
    failed_at: float
    size: int
    is_sure: bool

    @property
    def position(self) -> Position:
        return Position(self.failed_at, self.number)


def in_state(term: Term | None, state: str | None) -> Term | None:
    """The filter, narrowed to letters in this state."""
    if state is None:
        return term
    of_state = Condition("state", "=", Pattern((state,)))
    return of_state if term is None else And((of_state, *(term.terms if isinstance(term, And) else (term,))))


def _letter_of(kind: Kind) -> DeadLetter:
    return DeadLetter(
        message=Message("", kind.source, b""),
        attempts=0,
        classification=kind.classification,
        rule="",
        reason="",
        error_type="",
        error="",
        fingerprint=kind.fingerprint,
        first_failed_at=0.0,
        last_failed_at=0.0,
        state=kind.state,
    )


Candidates = Callable[[Execute, Term], Sequence[int] | None]
"""Names the letters that can match, where an index knows them."""


def _unknown(*_: object) -> Sequence[int] | None:
    return None


class LetterReader:
    """Reads letters from a database."""

    def __init__(self, database: Database, candidates: Candidates = _unknown) -> None:
        self._database, self._candidates = database, candidates

    def meant(self, term: Term | None, state: str | None, now: float | None) -> Meant:
        term = in_state(term, state)
        with self._database.reading() as run:
            now = self._database.now(run) if now is None else now
            if term is None:
                return Meant(None, now)
            bounds, numbers = compiled(term, now, _known(run)), self._candidates(run, term)
        if numbers is not None:
            named = exactly(Sql(f"l.no in ({_marks(numbers)})" if numbers else "false", tuple(numbers)))
            return Meant(term, now, all_of([named, opaque(bounds)]), predicate(term), is_named=True)
        return Meant(term, now, bounds, predicate(term))

    def find(self, condition: str, values: Sequence[object], order: str = "l.no") -> list[StoredLetter]:
        with self._database.reading() as run:
            return _read(run, condition, values, order)

    def page(
        self,
        meant: Meant,
        order: Order,
        *,
        is_descending: bool,
        after: Position | None,
        limit: int,
        progress: Progress | None = None,
    ) -> Page:
        found: list[Candidate] = []
        rest = False
        for candidate in self.matching(
            meant, order, is_descending=is_descending, after=after, chunk=limit + 1, progress=progress
        ):
            if rest := len(found) == limit or (bool(found) and sum(each.size for each in found) + candidate.size > READ_BYTES):
                break
            found.append(candidate)
        letters = self._letters([each.number for each in found])
        return Page(tuple(letters), found[-1].position if rest and found else None)

    def _letters(self, numbers: Sequence[int]) -> list[StoredLetter]:
        """Letters in the order of their numbers. One that was deleted meanwhile is left out."""
        if not numbers:
            return []
        found = {each.number: each for each in self.find(f"l.no in ({_marks(numbers)})", numbers)}
        return [found[number] for number in numbers if number in found]

    def count(self, meant: Meant, progress: Progress | None = None) -> int:
        if meant.is_counted:
            return sum(self.kinds(meant).values())
        if not meant.is_slow and meant.bounds.is_exact:
            with self._database.reading() as run:
                query = f"select count(*) from unpoison_letters l where {meant.bounds.upper.text}"
                return int(run(query, meant.bounds.upper.values).fetchall()[0][0])
        return sum(1 for _ in self.numbers(meant, progress))

    def select(self, meant: Meant, progress: Progress | None = None) -> Selection:
        return Selection("" if meant.term is None else str(meant.term), array("q", self.numbers(meant, progress)))

    def kinds(self, meant: Meant, progress: Progress | None = None) -> Mapping[Kind, int]:
        """How many letters of each kind match."""
        if meant.is_counted:
            with self._database.reading() as run:
                return {kind: count for kind, count in counts(run).items() if meant.matches(_letter_of(kind))}
        if not meant.is_slow and meant.bounds.is_exact:
            return self._added_up(meant.bounds.upper, {})
        kinds: dict[Kind, int] = {}
        numbers = list(self.numbers(meant, progress))
        for start in range(0, len(numbers), MOST_READ):
            part = numbers[start : start + MOST_READ]
            self._added_up(Sql(f"l.no in ({_marks(part)})", tuple(part)), kinds)
        return kinds

    def _added_up(self, condition: Sql, kinds: dict[Kind, int]) -> dict[Kind, int]:
        with self._database.reading() as run:
            query = f"select {_KIND}, count(*) from unpoison_letters l where {condition.text} group by {_KIND}"
            for *columns, count in run(query, condition.values).fetchall():
                kind = Kind(*columns)
                kinds[kind] = kinds.get(kind, 0) + count
        return kinds

    def numbers(self, meant: Meant, progress: Progress | None = None) -> Iterator[int]:
        """The numbers of the letters that match, of those that there are when it begins; in their order."""
        for candidate in self.matching(meant, Order.ARRIVAL, is_descending=False, chunk=WINDOW, progress=progress):
            yield candidate.number

    def matching(
        self,
        meant: Meant,
        order: Order,
        *,
        is_descending: bool = True,
        after: Position | None = None,
        chunk: int = MOST_READ,
        progress: Progress | None = None,
    ) -> Iterator[Candidate]:
        """The letters that match, in their order. One that arrives after it has begun is left out."""
        with self._database.reading() as run:
            newest = int(run("select last from unpoison_letter_turn", ()).fetchall()[0][0])
            total = sum(counts(run).values()) if progress else 0
            bounds = meant.bounds if order is Order.TIME or _is_narrow(run, meant) else opaque(meant.bounds)
        walk, seen = _Walk(order, is_descending, newest), 0
        while True:
            with self._database.reading() as run:
                until = walk.end_of_window(run, after) if meant.is_slow else None
                found = walk.candidates(run, bounds, after, until, chunk)
                right = self._right(run, meant, [each for each in found if not each.is_sure])
            yield from (each for each in found if each.is_sure or each.number in right)
            is_full = len(found) == chunk
            seen += len(found) if is_full or not meant.is_slow else WINDOW
            if progress:
                progress(min(seen, total), total)
            if not is_full and until is None:
                return
            after = found[-1].position if is_full else until
            chunk = min(chunk * 4, WINDOW)

    def _right(self, run: Execute, meant: Meant, unsure: Sequence[Candidate]) -> set[int]:
        """The numbers of those that match."""
        right: set[int] = set()
        for part in _portions(unsure):
            letters = _read(run, f"l.no in ({_marks(part)})", part)
            right |= {each.number for each in letters if meant.matches(each.letter)}
        return right


def _is_narrow(run: Execute, meant: Meant) -> bool:
    """Whether the letters are so few that they are found by an index and then sorted, rather than in their order."""
    if meant.term is None or meant.is_named or is_point(meant.term):
        return True
    part = of_few(meant.term)
    if part is None:
        return False
    asked = Meant(part, meant.now, asked=predicate(part))
    return sum(count for kind, count in counts(run).items() if asked.matches(_letter_of(kind))) <= WINDOW


class _Walk(NamedTuple):
    """A way through the letters that there were when it began."""

    order: Order
    is_descending: bool
    newest: int

    def candidates(
        self, run: Execute, bounds: Bounds, after: Position | None, until: Position | None, limit: int
    ) -> list[Candidate]:
        between = self._between(after, until)
        sure = (
            Sql("true")
            if bounds.is_exact
            else Sql(f"case when {bounds.lower.text} then true else false end", bounds.lower.values)
        )
        query = f"""select l.no, l.failed_at, l.size, {sure.text} from unpoison_letters l
            where {bounds.upper.text} and {between.text} order by {self._columns()} limit ?"""
        found = run(query, (*sure.values, *bounds.upper.values, *between.values, limit)).fetchall()
        return [Candidate(number, failed_at, size, bool(is_sure)) for number, failed_at, size, is_sure in found]

    def end_of_window(self, run: Execute, after: Position | None) -> Position | None:
        """The last letter of the next window; None if there are no more behind it."""
        between = self._between(after, None)
        query = f"""select l.failed_at, l.no from unpoison_letters l where {between.text}
            order by {self._columns()} limit 1 offset ?"""
        found = run(query, (*between.values, WINDOW - 1)).fetchall()
        return Position(*found[0]) if found else None

    def _columns(self) -> str:
        way = "desc" if self.is_descending else "asc"
        return f"l.failed_at {way}, l.no {way}" if self.order is Order.TIME else f"l.no {way}"

    def _between(self, after: Position | None, until: Position | None) -> Sql:
        behind, before = ("<", ">=") if self.is_descending else (">", "<=")
        found = [Sql("l.no <= ?", (self.newest,))]
        found += [self._compared(behind, after)] if after is not None else []
        found += [self._compared(before, until)] if until is not None else []
        return Sql(" and ".join(each.text for each in found), tuple(value for each in found for value in each.values))

    def _compared(self, operator: str, position: Position) -> Sql:
        if self.order is Order.TIME:
            return Sql(f"(l.failed_at, l.no) {operator} (?, ?)", tuple(position))
        return Sql(f"l.no {operator} ?", (position.number,))


def _portions(candidates: Sequence[Candidate]) -> Iterator[list[int]]:
    """Their numbers, so many at once that they fit into memory."""
    part: list[int] = []
    size = 0
    for each in candidates:
        if part and (len(part) == MOST_READ or size + each.size > READ_BYTES):
            yield part
            part, size = [], 0
        part.append(each.number)
        size += each.size
    if part:
        yield part


def _read(run: Execute, condition: str, values: Sequence[object], order: str = "l.no") -> list[StoredLetter]:
    return [stored(row) for row in run(f"select {STORED} from {FROM} where {condition} order by {order}", values).fetchall()]


def _known(run: Execute) -> Callable[[str, Sql], Sequence[str] | None]:
    """Asks for the values of a column by which letters are counted."""

    def known(column: str, condition: Sql) -> Sequence[str] | None:
        query = f"select distinct l.{column} from unpoison_letter_counts l where {condition.text} limit {MOST_VALUES + 1}"
        found = [value for (value,) in run(query, condition.values).fetchall()]
        return found if len(found) <= MOST_VALUES else None

    return known


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
