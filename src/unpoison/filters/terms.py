"""What does a filter say, once it is read?

Plain values, which compare equal if they mean the same and print as a filter that reads as the same. They are made to be
compiled to SQL as well as to be evaluated here, so their meaning needs nothing that the databases do differently:

- a condition is true or false, never unknown: about what is not there it is false (in SQL: `coalesce(…, false)`)
- case does not matter from A to Z, and matters for all other letters: no locale has a say (`lower` of SQLite, and of PostgreSQL
  in collation "C")
- texts are ordered by their code points, as their UTF-8 bytes are (`collate binary`, `collate "C"`)
- whole numbers within 64 bits are compared exactly; if one of two is anything else, both as 64-bit floats
- of members of one name in a JSON object the last one counts, as in `jsonb`; `json_extract` of SQLite takes the first, so there a
  condition on a member has to be evaluated by a function of ours
- times are bound as seconds since 1970; nothing asks the clock of a database
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from unpoison.filters.fields import FIELDS, Kind

KEYWORDS = ("and", "or", "not")
_PLAIN = re.compile(r"""[^\s()"\\:=!<>*-][^\s()"\\:=!<>*]*""")
_SPECIAL = re.compile(r"""[\s()"\\:=!<>*-]""")
_PLAIN_MEMBER = re.compile(r"""[^\s."()\[\]:=!<>\\]+""")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_LITERALS = {"true": True, "false": False, "null": None}

UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text, or with `*` the pieces between the stars.

    `is_literal`: it stood without quotes and is a number, true, false or null, which stand for the JSON value as well as for the
    text. Told only about members of a body.
    """

    pieces: tuple[str, ...]
    is_literal: bool = False

    @property
    def has_stars(self) -> bool:
        return len(self.pieces) > 1

    @property
    def text(self) -> str:
        return "*".join(self.pieces)

    @property
    def literal(self) -> bool | int | float | None:
        """The JSON value, of a literal."""
        return literal(self.text)

    def __str__(self) -> str:
        if self.has_stars:
            return "*".join(_SPECIAL.sub(lambda found: "\\" + found[0], piece) for piece in self.pieces)
        return self.text if self.is_literal else quoted(self.text)


def literal(text: str) -> bool | int | float | None:
    """The JSON value that a text is. Raises ValueError if it is none, or a number beyond the range of a float."""
    if text in _LITERALS:
        return _LITERALS[text]
    found = _NUMBER.fullmatch(text)
    if not found or abs(float(text)) == float("inf"):
        raise ValueError(text)
    number: int | float = float(text) if found[2] or found[3] else int(text)
    return number


def is_literal(text: str) -> bool:
    try:
        literal(text)
    except ValueError:
        return False
    return True


def quoted(text: str) -> str:
    """The text as it can stand in a filter: in quotes where it must."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in KEYWORDS else in_quotes(text)


def in_quotes(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time."""

    seconds: float

    def __str__(self) -> str:
        unit, size = next(((unit, size) for unit, size in UNITS.items() if self.seconds and self.seconds % size == 0), ("s", 1))
        number = self.seconds / size
        return f"{int(number) if number == int(number) else format(Decimal(repr(number)), 'f')}{unit}"


@dataclass(frozen=True, slots=True)
class Span:
    """A day, a minute or a second as it was written: its first instant and that of the next one, as seconds since 1970."""

    text: str
    start: float
    end: float

    def __str__(self) -> str:
        return quoted(self.text)


Value: TypeAlias = Pattern | Duration | Span | int


@dataclass(frozen=True, slots=True)
class Word:
    """A word or a phrase, found anywhere in a letter."""

    pattern: Pattern

    def __str__(self) -> str:
        return str(self.pattern)


@dataclass(frozen=True, slots=True)
class Condition:
    """A field, how it is compared, and with what.

    `path` is what stands behind the name: of a header its name; of a body the names of members, numbers of elements, and None for
    any element.
    """

    field: str
    operator: str
    value: Value
    path: tuple[str | int | None, ...] = ()

    @property
    def kind(self) -> Kind:
        return Kind.JSON if self.field == "body" and self.path else FIELDS[self.field].kind

    def __str__(self) -> str:
        value = str(self.value)
        if self.kind is Kind.JSON and isinstance(self.value, Pattern) and not self.value.is_literal and is_literal(value):
            value = in_quotes(value)
        return f"{self.field}{''.join(map(_step, self.path))}{self.operator}{value}"


def _step(step: str | int | None) -> str:
    if isinstance(step, str):
        return f".{step}" if _PLAIN_MEMBER.fullmatch(step) else f".{in_quotes(step)}"
    return "[]" if step is None else f"[{step}]"


@dataclass(frozen=True, slots=True)
class Not:
    term: "Term"

    def __str__(self) -> str:
        return f"not {_inner(self.term)}"


@dataclass(frozen=True, slots=True)
class And:
    terms: tuple["Term", ...]

    def __str__(self) -> str:
        return " ".join(map(_inner, self.terms))


@dataclass(frozen=True, slots=True)
class Or:
    terms: tuple["Term", ...]

    def __str__(self) -> str:
        return " or ".join(map(_inner, self.terms))


Term: TypeAlias = Word | Condition | Not | And | Or


def _inner(term: Term) -> str:
    return f"({term})" if isinstance(term, And | Or) else str(term)


def leaves(term: Term) -> Iterator[Word | Condition]:
    """The words and conditions of a filter, from left to right."""
    match term:
        case Not(inner):
            yield from leaves(inner)
        case And(terms) | Or(terms):
            for each in terms:
                yield from leaves(each)
        case _:
            yield term
