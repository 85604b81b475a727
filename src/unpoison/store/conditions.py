"""Conditions in SQL, and how conditions are made of conditions. None is ever null."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Sql(NamedTuple):
    """A condition, with ? for each value."""

    text: str
    values: tuple[object, ...] = ()


TRUE, FALSE = Sql("true"), Sql("false")


class Bounds(NamedTuple):
    """What holds for all that match and maybe for others, and what holds only for letters that match."""

    upper: Sql
    lower: Sql

    @property
    def is_exact(self) -> bool:
        return self.upper == self.lower


EVERY = Bounds(TRUE, TRUE)


def exactly(condition: Sql) -> Bounds:
    return Bounds(condition, condition)


def mapped(bounds: Bounds, change: Callable[[Sql], Sql]) -> Bounds:
    upper = change(bounds.upper)
    return Bounds(upper, upper if bounds.is_exact else change(bounds.lower))


def opaque(bounds: Bounds) -> Bounds:
    return mapped(
        bounds,
        lambda each: each if each in (TRUE, FALSE) else Sql(f"case when {each.text} then true else false end", each.values),
    )


def like_pattern(pieces: Sequence[str]) -> str:
    """For `like … escape '\\'`: the pieces with anything between them."""
    return "%".join(_escaped(piece) for piece in pieces)


def _escaped(text: str) -> str:
    for special in "\\%_":
        text = text.replace(special, f"\\{special}")
    return text


def negated(condition: Sql) -> Sql:
    if condition in (TRUE, FALSE):
        return FALSE if condition == TRUE else TRUE
    return Sql(f"not ({condition.text})", condition.values)


def all_of(bounds: Sequence[Bounds]) -> Bounds:
    return Bounds(every([each.upper for each in bounds]), every([each.lower for each in bounds]))


def every(conditions: Sequence[Sql]) -> Sql:
    if FALSE in conditions:
        return FALSE
    return _joined("and", [each for each in conditions if each != TRUE]) or TRUE


def some(conditions: Sequence[Sql]) -> Sql:
    if TRUE in conditions:
        return TRUE
    return _joined("or", [each for each in conditions if each != FALSE]) or FALSE


def _joined(word: str, conditions: Sequence[Sql]) -> Sql | None:
    """In pairs of pairs, since SQLite limits how deep an expression is."""
    if len(conditions) <= 1:
        return conditions[0] if conditions else None
    if word == "and" and len(conditions) <= 16:  # flat, so that a database sees each condition
        return Sql(f"({' and '.join(each.text for each in conditions)})", _values(conditions))
    half = len(conditions) // 2
    left, right = _joined(word, conditions[:half]), _joined(word, conditions[half:])
    assert left is not None  # noqa: S101 - for the type checker
    assert right is not None  # noqa: S101
    return Sql(f"({left.text} {word} {right.text})", (*left.values, *right.values))


def _values(conditions: Sequence[Sql]) -> tuple[object, ...]:
    return tuple(value for each in conditions for value in each.values)
