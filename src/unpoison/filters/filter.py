"""`Filter`: a filter that was read, and can be asked about letters."""

import time

from unpoison.errors import FilterError
from unpoison.filters.matching import Subject, predicate
from unpoison.filters.parsing import parse
from unpoison.filters.terms import And, Condition, Not, Or, Term, leaves
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Message


class Filter:
    """Which letters are meant. `Filter.parse('error:timeout age>1h')` makes it; docs/dead-letters.md has the language.

    Two filters that say the same are equal, however they are written; `str` gives the text that both have in common.
    """

    __slots__ = ("_matches", "term")

    def __init__(self, term: Term) -> None:
        self.term = term
        self._matches = predicate(term)

    @classmethod
    def parse(cls, text: "str | Filter") -> "Filter":
        """Read a filter. Raises FilterError, which points at what is wrong."""
        if isinstance(text, Filter):
            return text
        if not isinstance(text, str):
            raise FilterError(f"A filter is a text such as 'error:timeout age>1h', got {text!r}.")
        return cls(parse(text))

    def matches(self, letter: DeadLetter, now: float | None = None) -> bool:
        """Whether the letter matches, at this moment (seconds since 1970)."""
        return self._matches(Subject(letter, time.time() if now is None else now))

    @property
    def fields(self) -> frozenset[str]:
        """The fields that it asks about."""
        return frozenset(leaf.field for leaf in leaves(self.term) if isinstance(leaf, Condition))

    def needs(self, name: str) -> bool:
        """Whether a letter can match only by what it has in this field, with a `>` or `>=`: for an age, only if it is old."""
        return _needs(self.term, name)

    def can_match(self, **known: str) -> bool:
        """Whether any letter with this `source` and `state` could match. What cannot need not be read."""
        return _possible(self.term, known) is not False

    def __str__(self) -> str:
        return str(self.term)

    def __repr__(self) -> str:
        return f"Filter.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.term == other.term

    def __hash__(self) -> int:
        return hash(self.term)

    def __reduce__(self) -> "tuple[type[Filter], tuple[Term]]":
        return type(self), (self.term,)


def _needs(term: Term, name: str) -> bool:
    match term:
        case And(terms):
            return any(_needs(one, name) for one in terms)
        case Or(terms):
            return all(_needs(one, name) for one in terms)
        case Condition(field, operator):
            return field == name and operator in (">", ">=")
    return False


def _possible(term: Term, known: dict[str, str]) -> bool | None:
    """True or False where that follows from what is known, else None."""
    match term:
        case Not(inner):
            found = _possible(inner, known)
            return None if found is None else not found
        case And(terms) | Or(terms):
            decisive = isinstance(term, Or)
            each = [_possible(one, known) for one in terms]
            return decisive if decisive in each else None if None in each else not decisive
        case Condition(field=("source" | "state") as name) if name in known:
            return predicate(term)(_subject(**known))
    return None


def _subject(source: str = "", state: str = "dead") -> Subject:
    """A letter of which no more is known."""
    message = Message("", source, b"")
    letter = DeadLetter(
        message=message,
        attempts=0,
        classification="",
        rule="",
        reason="",
        error_type="",
        error="",
        first_failed_at=0.0,
        last_failed_at=0.0,
        state=state,
    )
    return Subject(letter, 0.0)
