"""Which letters can a filter mean, and which does it mean for certain, as conditions in SQL?

Each term becomes two conditions: `upper` holds for every letter that matches, `lower` for none that does not. Where both are the
same SQL answers alone; other letters are asked about by `filters/matching.py`. So nothing has to be said exactly that SQL cannot:
members of a JSON body, for example, are only narrowed by the names and texts that have to stand in it. Both databases get the
same conditions, made of nothing that they do differently, and every value is bound.

A condition is never null. Those on columns that have an index stand as they are; others may be `opaque`, which keeps a database
from using the index of a column that says little.
"""

from collections.abc import Callable, Sequence

import msgspec

from unpoison.filters.fields import Kind
from unpoison.filters.matching import cost, fold
from unpoison.filters.terms import And, Condition, Duration, Not, Or, Pattern, Span, Term, Word, leaves
from unpoison.store.conditions import (
    EVERY,
    FALSE,
    TRUE,
    Bounds,
    Sql,
    all_of,
    every,
    exactly,
    like_pattern,
    mapped,
    negated,
    opaque,
    some,
)
from unpoison.store.letters.bodies import JSON, PACKED_TEXT
from unpoison.store.letters.columns import EARLIEST, INDEXED, REPLACED

MOST_LEAVES = 50
"""A filter of more words and conditions is not compiled: PostgreSQL plans hundreds for longer than it would take to read letters,
and SQLite takes only so many values and levels."""


Known = Callable[[str, Sql], Sequence[str] | None]
"""The values of a column that there are and that meet a condition on it, if they are few."""

_COLUMNS = {
    "reason": ("l.reason",),
    "rule": ("l.rule",),
    "class": ("l.classification",),
    "state": ("l.state",),
    "source": ("l.source",),
    "group": ("l.fingerprint",),
    "key": ("coalesce(l.key, '')",),
    "id": ("l.letter_id", "l.message_id"),
    "version": ("coalesce(l.code_version, '')",),
    "consumer": ("l.consumer",),
    "error": (
        "(l.error_type || ': ' || l.error)",
        "(l.error_name || ': ' || l.error)",
        "l.error_type",
        "l.error_name",
        "l.error",
    ),
    "traceback": ("t.traceback",),
    "body": ("c.body_text",),
}
FEW = {"source": "source", "state": "state", "group": "fingerprint", "class": "classification"}
"""Fields that letters are counted by, with their columns: their values are few."""
_INDEXED = ("key", "id")
"""Fields with an index in which their case does not count."""
_NUMBERS = {"attempts": "l.attempts", "replays": "l.replays", "failed": "l.failed_at", "first_failed": "l.first_failed_at"}
_OPERATORS = {":": "=", "=": "=", ">": ">", ">=": ">=", "<": "<", "<=": "<="}


def compiled(term: Term | None, now: float, known: Known) -> Bounds:
    """The conditions for a filter at this moment, on `unpoison_letters l`."""
    if term is None:
        return EVERY
    if sum(1 for _ in leaves(term)) > MOST_LEAVES:
        return Bounds(TRUE, FALSE)
    return _Compiler(now, known).top(term)


class _Compiler:
    def __init__(self, now: float, known: Known) -> None:
        self._now, self._known = now, known

    def top(self, term: Term) -> Bounds:
        """Of terms that all have to hold, those that say most may use their index."""
        terms = term.terms if isinstance(term, And) else (term,)
        ranks = [_rank(each) for each in terms]
        best = max(ranks)
        useful = {best} if best == _POINT else {best, _STATE}
        found = [self.of(each, may_use_index=rank in useful) for each, rank in zip(terms, ranks, strict=True)]
        return all_of([bounds for _, bounds in sorted(zip(map(cost, terms), found, strict=True), key=lambda pair: pair[0])])

    def of(self, term: Term, *, may_use_index: bool = False) -> Bounds:
        match term:
            case Not(inner):
                bounds = self.of(inner)
                return Bounds(negated(bounds.lower), negated(bounds.upper))
            case And(terms):
                return all_of([self.of(each) for each in sorted(terms, key=cost)])
            case Or(terms):
                found = [self.of(each) for each in sorted(terms, key=cost)]
                return Bounds(some([each.upper for each in found]), some([each.lower for each in found]))
            case Word(pattern):
                return _word(pattern)
            case Condition(operator="!="):
                return self.of(Not(Condition(term.field, "=", term.value, term.path)))
            case Condition():
                return self._condition(term, may_use_index)

    def _condition(self, condition: Condition, may_use_index: bool) -> Bounds:
        if not isinstance(condition.value, Pattern):
            return exactly(self._number(condition.field, condition.operator, condition.value))
        if condition.kind is Kind.JSON:
            return _in_contents(Bounds(_member(condition), FALSE))
        if condition.kind is Kind.HEADER:
            return _in_contents(_header(condition))
        if condition.field in FEW:
            return self._of_few(condition, may_use_index)
        return _of_field(condition, may_use_index)

    def _of_few(self, condition: Condition, may_use_index: bool) -> Bounds:
        """By the values that there are: one value can use an index, and all of them need no condition."""
        column = FEW[condition.field]
        bounds = _texts(condition.field, condition.operator, condition.value, condition.kind)
        values = self._known(column, bounds.upper) if bounds.is_exact else None
        if values is None:
            return opaque(bounds)
        if len(values) == 1:
            found = exactly(Sql(f"l.{column} = ?", (values[0],)))
            return found if may_use_index else opaque(found)
        return opaque(exactly(Sql(f"l.{column} in ({', '.join('?' * len(values))})", tuple(values)) if values else FALSE))

    def _number(self, name: str, operator: str, value: Duration | Span | int) -> Sql:
        if isinstance(value, Duration):
            return self._age(operator, value.seconds)
        if isinstance(value, Span):
            return _moment(_NUMBERS[name], operator, value)
        return Sql(f"{_NUMBERS[name]} {_OPERATORS[operator]} ?", (value,))

    def _age(self, operator: str, seconds: float) -> Sql:
        """As Python counts it, and a limit on the column itself, a little wider, for its index."""
        edge = self._now - seconds
        near = Sql("l.failed_at <= ?", (edge + 1.0,)) if operator in (">", ">=") else Sql("l.failed_at >= ?", (edge - 1.0,))
        return every([near, _is_time("l.failed_at"), Sql(f"(? - l.failed_at) {operator} ?", (self._now, seconds))])


_STATE, _SOURCE, _GROUP, _POINT = 1, 2, 3, 4
_RANKS = {"state": _STATE, "source": _SOURCE, "group": _GROUP, "key": _POINT, "id": _POINT}


def is_point(term: Term) -> bool:
    """Whether it names a key or an id that very few letters have."""
    return any(_rank(each) == _POINT for each in (term.terms if isinstance(term, And) else (term,)))


def of_few(term: Term) -> Term | None:
    """The part of the filter that only asks for what letters are counted by."""
    terms = [each for each in (term.terms if isinstance(term, And) else (term,)) if is_counted(each)]
    return And(tuple(terms)) if terms else None


def is_counted(term: Term) -> bool:
    return all(isinstance(each, Condition) and each.field in FEW for each in leaves(term))


def _rank(term: Term) -> int:
    """How much a term says about where to look: an id or a key most, then a group, a source, a state."""
    return _RANKS.get(term.field, 0) if isinstance(term, Condition) and term.operator in (":", "=") else 0


# Texts


def _of_field(condition: Condition, may_use_index: bool) -> Bounds:
    bounds = _texts(condition.field, condition.operator, condition.value, condition.kind)
    match condition.field:
        case "traceback":
            return _in_tracebacks(bounds)
        case "body":
            return _in_contents(_or_packed(bounds))
        case _:
            return bounds if may_use_index else opaque(bounds)


def _texts(name: str, operator: str, value: object, kind: Kind) -> Bounds:
    """One of the texts of the field has to match. An empty one is not there."""
    assert isinstance(value, Pattern)  # noqa: S101 - for the type checker
    columns = _COLUMNS[name]
    if operator == "=":
        return _bounded(value.text, lambda text: some([_same(column, text, has_index=name in _INDEXED) for column in columns]))
    if value.has_stars:
        return _bounded("".join(value.pieces), lambda _: some([_like(column, value.pieces) for column in columns]))
    if kind is Kind.TEXT:
        return _bounded(value.text, lambda _: _like(columns[0], ("", value.text, "")))  # the first has all others in it
    if kind is Kind.PREFIX:
        return _bounded(value.text, lambda _: some([_like(column, (value.text, "")) for column in columns]))
    return _bounded(value.text, lambda _: some([_equal(column, value.text) for column in columns]))


def _word(pattern: Pattern) -> Bounds:
    pieces = ("", *(piece for piece in pattern.pieces if piece), "")

    def bounds(name: str) -> Bounds:
        return _bounded("".join(pieces), lambda _: some([_like(column, pieces) for column in _COLUMNS[name][: _FIRST.get(name)]]))

    found = [bounds("error"), bounds("id"), bounds("key"), _in_tracebacks(bounds("traceback"))]
    found.append(_in_contents(_or_packed(bounds("body"))))
    return Bounds(some([each.upper for each in found]), some([each.lower for each in found]))


_FIRST = {"error": 1}
"""The first text of an error has all its others in it."""


def _bounded(wanted: str, condition: Callable[[str], Sql]) -> Bounds:
    """A column has U+FFFD in the place of each NUL: so a text matches only if its column does, but with these two characters not
    the other way round. No text in the store has half a character."""
    if not wanted.isascii():
        try:
            wanted.encode()
        except UnicodeEncodeError:
            return Bounds(FALSE, FALSE)
    upper = condition(wanted.replace("\0", REPLACED))
    return Bounds(upper, FALSE if "\0" in wanted or REPLACED in wanted else upper)


def _like(column: str, pieces: Sequence[str]) -> Sql:
    """Whether the text is the pieces with anything between them. An empty text does not count."""
    pattern = like_pattern([_column(fold(piece)) for piece in pieces])
    found = _never_null(Sql(f"lower({column}) like ? escape '\\'", (pattern,)))
    return found if any(pieces) else every([found, _never_null(Sql(f"{column} <> ?", ("",)))])


def _equal(column: str, text: str) -> Sql:
    """In any case. Written as the indexes of these columns are."""
    wanted = fold(_column(text))
    if column.startswith("coalesce(l.key"):
        return Sql(f"(l.key is not null and {_begins('l.key')} = ? and lower(l.key) = ?)", (wanted[:INDEXED], wanted))
    if column in ("l.letter_id", "l.message_id"):
        return Sql(f"({_begins(column)} = ? and lower({column}) = ?)", (wanted[:INDEXED], wanted))
    return _never_null(Sql(f"lower({column}) = ?", (wanted,)))


def _begins(column: str) -> str:
    return f"lower(substr({column}, 1, {INDEXED}))"


def _same(column: str, text: str, *, has_index: bool) -> Sql:
    exact = _never_null(Sql(f"{column} = ?", (text,)))
    return every([_equal(column, text), exact]) if has_index and text else exact


def _column(text: str) -> str:
    return text.replace("\0", REPLACED)


def _in_tracebacks(bounds: Bounds) -> Bounds:
    """Each text is asked once, however many letters have it."""

    def within(condition: Sql) -> Sql:
        if condition in (TRUE, FALSE):
            return condition
        inner = f"select t.digest from unpoison_tracebacks t where {condition.text}"
        return Sql(f"(l.traceback is not null and l.traceback in ({inner}))", condition.values)

    return mapped(bounds, within)


def _in_contents(bounds: Bounds) -> Bounds:
    def within(condition: Sql) -> Sql:
        if condition == FALSE:
            return condition
        inner = f"select 1 from unpoison_letter_contents c where c.no = l.no and {condition.text}"
        return Sql(f"exists ({inner})", condition.values)

    return mapped(bounds, within)


def _or_packed(bounds: Bounds) -> Bounds:
    """SQL cannot look into a text that is compressed."""
    if bounds.upper == FALSE:
        return bounds
    return Bounds(some([Sql("c.form = ?", (PACKED_TEXT,)), bounds.upper]), bounds.lower)


# Headers and members, in the JSON that they are kept as


def _header(condition: Condition) -> Bounds:
    """Headers are kept as {"name":"value","name":"value"}. A quote inside a text has a backslash before it, so what is searched
    for here is found only where a member begins."""
    pattern, name = condition.value, condition.path[0]
    assert isinstance(pattern, Pattern)  # noqa: S101 - for the type checker
    assert isinstance(name, str)  # noqa: S101
    try:
        begin = f"{_quoted(name)}:"
        pieces = [_quoted(piece)[1:-1] for piece in pattern.pieces]
    except UnicodeEncodeError:
        return Bounds(FALSE, FALSE)
    is_any = not any(pieces) and pattern.has_stars
    value = "" if is_any else None if pattern.has_stars else f'"{pieces[0]}"'
    found = [begin + value] if value is not None else [begin + '"' + pieces[0], *pieces[1:]]
    condition_of = [_like("c.headers", ("", before + found[0], *found[1:], "")) for before in "{,"]
    # `field:*` means a value that is not empty only for fields; of a header any value is one, and the empty one is equal to it.
    is_exact = value is not None and condition.operator == ":"
    return Bounds(some(condition_of), some(condition_of) if is_exact else FALSE)


def _member(condition: Condition) -> Sql:
    """The names and the text have to stand in the JSON as they are, unless it has a backslash, with which they may be written in
    another way."""
    pattern = condition.value
    assert isinstance(pattern, Pattern)  # noqa: S101 - for the type checker
    needed = [_like("c.body_text", ("", step, "")) for step in condition.path if isinstance(step, str) and _is_plain(step)]
    if condition.operator in (":", "=") and not pattern.is_literal and any(pattern.pieces) and _is_plain(pattern.text):
        pieces = pattern.pieces if condition.operator == ":" else (pattern.text,)
        needed.append(_like("c.body_text", ("", *filter(None, pieces), "")))
    has_backslash = Sql("c.body_text like ? escape '!'", ("%\\%",))
    return every([Sql("c.form = ?", (JSON,)), some([has_backslash, every(needed)]) if needed else TRUE])


def _is_plain(text: str) -> bool:
    try:
        return bool(text) and "\0" not in text and text.encode() != b""
    except UnicodeEncodeError:
        return False


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


# Times


def _moment(column: str, operator: str, span: Span) -> Sql:
    """After a day means after its end, before it means before its start."""
    if operator in (":", "="):
        return every([Sql(f"{column} >= ?", (span.start,)), Sql(f"{column} < ?", (span.end,))])
    comparison, edge = {">": (">=", span.end), ">=": (">=", span.start), "<": ("<", span.start), "<=": ("<", span.end)}[operator]
    return every([_is_time(column), Sql(f"{column} {comparison} ?", (edge,))])


def _is_time(column: str) -> Sql:
    return Sql(f"{column} >= ?", (EARLIEST,))


def _never_null(condition: Sql) -> Sql:
    """Columns that may be null stand in `coalesce`, or behind a look whether they are."""
    if condition.text.startswith(("lower(c.", "c.", "lower(t.", "t.")):
        return Sql(f"coalesce({condition.text}, false)", condition.values)
    return condition
