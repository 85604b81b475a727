"""Which letters does a filter match?

A filter becomes one function of a `Subject`, which is a letter and the moment it is asked at. The meaning is that of terms.py.
Cheap conditions are asked first, so that a body is decoded only if the rest has not decided, and only once. Whatever a letter
holds, nothing is raised.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from unpoison.filters.fields import Kind
from unpoison.filters.terms import And, Condition, Duration, Not, Or, Pattern, Span, Term, Word
from unpoison.model.dead_letter import DeadLetter

_MISSING, _UNREAD = object(), object()
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, MemoryError)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {":": operator.eq, "=": operator.eq, "!=": operator.ne, **_ORDER}
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1

_decode = msgspec.json.Decoder().decode


class Subject:
    """A letter, the moment it is asked at, and what was worked out of it."""

    __slots__ = ("_json", "_texts", "letter", "now")

    def __init__(self, letter: DeadLetter, now: float) -> None:
        self.letter, self.now = letter, now
        self._json = _UNREAD
        self._texts: dict[str, Sequence[str]] | None = None

    @property
    def json(self) -> object:
        """The body as JSON; _MISSING where it is none."""
        if self._json is _UNREAD:
            try:
                self._json = _decode(self.letter.message.body)
            except _UNREADABLE:
                self._json = _MISSING
        return self._json

    def folded(self, name: str) -> Sequence[str]:
        """The texts of a field, with A to Z as a to z."""
        if self._texts is None:
            self._texts = {}
        found = self._texts.get(name)
        if found is None:
            found = self._texts[name] = [fold(text) for text in TEXTS[name](self.letter) if text]
        return found


Predicate: TypeAlias = Callable[[Subject], bool]


def fold(text: str) -> str:
    """The text with A to Z as a to z, and all else as it is."""
    if text.isascii():
        return text.lower()
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def _error(letter: DeadLetter) -> Sequence[str]:
    kind = letter.error_type
    short = kind.rpartition(".")[2]
    if short == kind:
        return (f"{kind}: {letter.error}", kind, letter.error)
    return (f"{kind}: {letter.error}", f"{short}: {letter.error}", kind, short, letter.error)


def _body(letter: DeadLetter) -> Sequence[str]:
    if b"\0" in letter.message.body:
        return ()
    try:
        return (letter.message.body.decode(),)
    except UnicodeDecodeError:
        return ()


TEXTS: Mapping[str, Callable[[DeadLetter], Sequence[str]]] = {
    "error": _error,
    "traceback": lambda letter: (letter.traceback,),
    "reason": lambda letter: (letter.reason,),
    "rule": lambda letter: (letter.rule,),
    "body": _body,
    "class": lambda letter: (letter.classification,),
    "state": lambda letter: (letter.state,),
    "source": lambda letter: (letter.message.source,),
    "group": lambda letter: (letter.fingerprint,),
    "key": lambda letter: (letter.message.key or "",),
    "id": lambda letter: (letter.id, letter.message.id),
    "version": lambda letter: (letter.code_version or "",),
    "consumer": lambda letter: (letter.consumer,),
}
"""The texts of a field, of which one has to match. An empty one is not there."""

SEARCHED = ("error", "id", "key", "traceback", "body")
"""Where words and phrases are looked for."""

_NUMBERS: Mapping[str, Callable[[DeadLetter], float]] = {
    "attempts": lambda letter: letter.attempts,
    "replays": lambda letter: letter.replays,
    "failed": lambda letter: letter.last_failed_at,
    "first_failed": lambda letter: letter.first_failed_at,
}


def predicate(term: Term) -> Predicate:
    """The function that says whether a letter matches."""
    match term:
        case Not(inner):
            refused = predicate(inner)
            return lambda subject: not refused(subject)
        case And(terms):
            needed = [predicate(each) for each in sorted(terms, key=cost)]
            return lambda subject: all(each(subject) for each in needed)
        case Or(terms):
            enough = [predicate(each) for each in sorted(terms, key=cost)]
            return lambda subject: any(each(subject) for each in enough)
        case Word(pattern):
            return _word(pattern)
        case Condition():
            return _condition(term)


def cost(term: Term) -> int:
    """How much work a term is: 0 for a comparison, 1 and 2 for longer texts, 3 for a body that has to be decoded."""
    match term:
        case Not(inner):
            return cost(inner)
        case And(terms) | Or(terms):
            return max(map(cost, terms))
        case Word():
            return 2
        case _:
            return 3 if term.kind is Kind.JSON else {"error": 1, "traceback": 2, "body": 2}.get(term.field, 0)


def _word(pattern: Pattern) -> Predicate:
    found = _found(pattern)
    return lambda subject: any(found(text) for name in SEARCHED for text in subject.folded(name))


def _condition(condition: Condition) -> Predicate:
    if condition.operator == "!=":
        equal = _condition(Condition(condition.field, "=", condition.value, condition.path))
        return lambda subject: not equal(subject)
    match condition.kind:
        case Kind.JSON:
            return _member(condition)
        case Kind.HEADER:
            return _header(condition)
        case Kind.NUMBER | Kind.AGE | Kind.MOMENT:
            return _number(condition)
    assert isinstance(condition.value, Pattern)  # noqa: S101 - for the type checker
    name, value = condition.field, condition.value.text
    if condition.operator == "=":
        texts = TEXTS[name]
        return lambda subject: value in texts(subject.letter)
    matches = _matcher(condition.kind, condition.value)
    return lambda subject: any(map(matches, subject.folded(name)))


def _matcher(kind: Kind, pattern: Pattern) -> Callable[[str], bool]:
    if pattern.has_stars:
        return _whole(pattern)
    value = fold(pattern.text)
    if kind is Kind.TEXT:
        return lambda text: value in text
    return (lambda text: text.startswith(value)) if kind is Kind.PREFIX else (lambda text: text == value)


def _found(pattern: Pattern) -> Callable[[str], bool]:
    """Whether a folded text has the pieces in it, in this order."""
    pieces = [fold(piece) for piece in pattern.pieces if piece]
    if len(pieces) == 1:
        return lambda text: pieces[0] in text
    return lambda text: _in_order(pieces, text, 0, len(text))


def _whole(pattern: Pattern) -> Callable[[str], bool]:
    """Whether a folded text is the pieces with anything between them."""
    first, *between, last = (fold(piece) for piece in pattern.pieces)
    shortest = len(first) + len(last)

    def matches(text: str) -> bool:
        ends = len(text) >= shortest and text.startswith(first) and text.endswith(last)
        return ends and _in_order(between, text, len(first), len(text) - len(last))

    return matches


def _in_order(pieces: Iterable[str], text: str, start: int, end: int) -> bool:
    """The first place of each is as good as any later one, so that this takes no longer than a few looks at the text."""
    for piece in pieces:
        at = text.find(piece, start, end)
        if at < 0:
            return False
        start = at + len(piece)
    return True


def _number(condition: Condition) -> Predicate:
    compare, value = _COMPARED[condition.operator], condition.value
    if isinstance(value, Duration):
        seconds = value.seconds
        return lambda subject: compare(subject.now - subject.letter.last_failed_at, seconds)
    of = _NUMBERS[condition.field]
    if not isinstance(value, Span):
        return lambda subject: compare(of(subject.letter), value)
    start, end = value.start, value.end
    if condition.operator in (":", "="):
        return lambda subject: start <= of(subject.letter) < end
    # After a day means after its end, before it means before its start.
    after, edge = {">": (True, end), ">=": (True, start), "<": (False, start), "<=": (False, end)}[condition.operator]
    return lambda subject: of(subject.letter) >= edge if after else of(subject.letter) < edge


def _header(condition: Condition) -> Predicate:
    name, equal = fold(str(condition.path[0])), _text_equals(condition)
    return lambda subject: any(equal(value) for header, value in subject.letter.message.headers.items() if fold(header) == name)


def _text_equals(condition: Condition) -> Callable[[str], bool]:
    """How the text of a header or of a member is compared."""
    assert isinstance(condition.value, Pattern)  # noqa: S101 - for the type checker
    if condition.operator == "=":
        exact = condition.value.text
        return lambda text: text == exact
    matches = _matcher(Kind.NAME, condition.value)
    return lambda text: matches(fold(text))


def _member(condition: Condition) -> Predicate:
    path = condition.path
    matches = _value_matcher(condition)
    return lambda subject: any(matches(value) for value in _at(subject.json, path))


def _at(value: Any, path: Sequence[str | int | None]) -> Sequence[Any]:
    """What is at this path: nothing, one value, or one for each element of a list."""
    found = [] if value is _MISSING else [value]
    for step in path:
        if isinstance(step, str):
            found = [each[step] for each in found if isinstance(each, dict) and step in each]
        elif step is None:
            found = [element for each in found if isinstance(each, list) for element in each]
        else:
            found = [each[step] for each in found if isinstance(each, list) and step < len(each)]
    return found


def _value_matcher(condition: Condition) -> Callable[[Any], bool]:
    pattern = condition.value
    assert isinstance(pattern, Pattern)  # noqa: S101 - for the type checker
    if not any(pattern.pieces) and pattern.has_stars:  # body.total:* asks whether it is there
        return lambda _: True
    if condition.operator in _ORDER:
        return _ordered(_ORDER[condition.operator], pattern)
    equals = _text_equals(condition)
    if not pattern.is_literal:
        return lambda value: isinstance(value, str) and equals(value)
    literal = pattern.literal

    def matches(value: Any) -> bool:
        if isinstance(value, str):
            return equals(value)
        if isinstance(value, bool) or value is None or isinstance(literal, bool) or literal is None:
            return value is literal
        return isinstance(value, int | float) and _numerically(operator.eq, value, literal)

    return matches


def _ordered(compare: Callable[[Any, Any], bool], pattern: Pattern) -> Callable[[Any], bool]:
    """Numbers with a number, texts with a text."""
    if not pattern.is_literal:
        text = pattern.text
        return lambda value: isinstance(value, str) and compare(value, text)
    number = pattern.literal
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and _numerically(compare, value, number)


def _numerically(compare: Callable[[Any, Any], bool], value: float, other: Any) -> bool:
    """Whole numbers within 64 bits exactly; anything else as floats."""
    if isinstance(value, int) and isinstance(other, int) and _LOWEST <= value <= _HIGHEST and _LOWEST <= other <= _HIGHEST:
        return compare(value, other)
    try:
        return compare(float(value), float(other))
    except OverflowError:  # an integer that no float can hold
        return compare(value, other)
