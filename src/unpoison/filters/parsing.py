"""What does the text of a filter mean?

    filter    = all { "or" all }
    all       = one { [ "and" ] one }
    one       = ( "not" | "-" ) one | "(" filter ")" | condition | word | "phrase"
    condition = field operator value, without spaces
    field     = error | source | body.customer.id | body.items[].sku | header.tenant | …   (fields.py has them all)
    operator  = ":" | "=" | "!=" | ">" | ">=" | "<" | "<="
    value     = word with * for anything | "text as it is"

By recursive descent; a filter that is too long or too deep is refused, and no other text raises anything but FilterError.
"""

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from unpoison.filters.fields import FIELDS, Field, Kind, meant_value
from unpoison.filters.lexing import Token, fail, tokens
from unpoison.filters.terms import And, Condition, Not, Or, Pattern, Term, Value, Word, is_literal
from unpoison.filters.values import duration, number, span
from unpoison.model.wording import one_line

MOST_DEPTH = 50

_STEP = re.compile(r'\.(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<plain>[^."\[\]]++))|\[(?P<number>[^\]]*+)\]', re.DOTALL)


def parse(text: str) -> Term:
    """The term that this text means. Raises FilterError."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._tokens = text, tokens(text)
        self._next = next(self._tokens)

    def whole(self) -> Term:
        if self._next.kind == "end":
            self._fail(self._next, "The filter is empty. To take every letter, leave the filter out.")
        term = self._any(0)
        if self._next.kind == ")":
            self._fail(self._next, "This parenthesis closes none.")
        return term

    def _any(self, depth: int) -> Term:
        terms = [self._all(depth)]
        while self._took("or"):
            terms.append(self._all(depth))
        return terms[0] if len(terms) == 1 else Or(tuple(terms))

    def _all(self, depth: int) -> Term:
        terms = [self._one(depth)]
        while self._took("and") or self._next.kind not in ("or", ")", "end"):
            terms.append(self._one(depth))
        return terms[0] if len(terms) == 1 else And(tuple(terms))

    def _one(self, depth: int) -> Term:
        token = self._next
        if depth > MOST_DEPTH:
            self._fail(token, f"The filter is nested more than {MOST_DEPTH} levels deep.")
        if self._took("not"):
            return Not(self._one(depth + 1))
        if self._took("("):
            term = self._any(depth + 1)
            if not self._took(")"):
                self._fail(token, "This parenthesis is not closed.")
            return term
        if not self._took("text"):
            what = {"end": "Here the filter ends too early", ")": "Something is missing before this parenthesis"}
            before = what.get(token.kind, f"Something is missing before {token.kind!r}")
            quotes = "" if token.kind in what else f' To search for the word put it into quotes: "{token.kind}"'
            self._fail(token, f"{before}: a word, or a condition such as error:timeout.{quotes}")
        return self._word(token) if token.head is None else self._condition(token)

    def _took(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        if kind != "end":
            self._next = next(self._tokens)
        return True

    def _fail(self, token: Token, problem: str) -> NoReturn:
        fail(self._text, token.start, token.end, problem)

    def _word(self, token: Token) -> Word:
        if not any(token.pattern.pieces):
            self._fail(token, "This is in every letter. To take every letter, leave the filter out.")
        return Word(token.pattern)

    def _condition(self, token: Token) -> Condition:
        assert token.head is not None  # noqa: S101 - for the type checker
        name, _, operator = token.head
        field = FIELDS[name]
        path = self._path(token, field)
        kind = Kind.JSON if name == "body" and path else field.kind
        if operator not in kind.operators:
            said = f"{name} is compared by {' '.join(kind.operators)}"
            self._fail(token, f"{said}, not by {operator!r}: {field.example}")
        try:
            return Condition(name, operator, _value_of(name, kind, operator, token), path)
        except ValueError as error:
            fail(self._text, token.value_start, token.end, str(error))

    def _path(self, token: Token, field: Field) -> tuple[str | int | None, ...]:
        assert token.head is not None  # noqa: S101 - for the type checker
        name, path, operator = token.head
        if field.kind is Kind.HEADER:
            header = _STEP.fullmatch(path)
            written = header["quoted"] if header and header["quoted"] is not None else path[1:]
            if not path.startswith(".") or not written:
                self._fail(token, f"Which header? Its name stands behind a dot: {field.example}")
            return (_unescaped(written),)
        if path and name != "body":
            example = f'"{name}{one_line(path, 40)}{operator}…"'
            self._fail(token, f"{name} has nothing inside: write {field.example}. To search for the text: {example}")
        return tuple(self._step(token, step) for step in _STEP.finditer(path))

    def _step(self, token: Token, step: re.Match[str]) -> str | int | None:
        if step["number"] is None:
            return step["plain"] if step["quoted"] is None else _unescaped(step["quoted"])
        if step["number"] in ("", "*"):
            return None
        if not re.fullmatch("[0-9]+", step["number"]):
            self._fail(token, f"{step[0]!r} is no place in a list. Write [0] for the first element, [] for any.")
        return int(step["number"])


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


_READ: Mapping[Kind, Callable[[str, str], Value]] = {Kind.NUMBER: number, Kind.AGE: duration, Kind.MOMENT: span}


def _value_of(name: str, kind: Kind, operator: str, token: Token) -> Value:
    """The value of a condition. Raises ValueError, with a text for people, if it cannot be one."""
    pattern = token.pattern
    if kind in _READ:
        return _READ[kind](name, pattern.text)
    if pattern.has_stars and operator != ":":
        raise ValueError(f"{operator!r} compares with the text as it is. With stars write {name}:…, or put the text into quotes.")
    if kind in (Kind.HEADER, Kind.JSON):
        plain = not token.is_quoted and not pattern.has_stars
        found = Pattern(pattern.pieces, kind is Kind.JSON and plain and is_literal(pattern.text))
        if found.is_literal and operator in (">", ">=", "<", "<=") and isinstance(found.literal, bool | None):
            raise ValueError(f"{found.text} is neither greater nor less than anything. Write a number, or a text in quotes.")
        return found
    if pattern.text == "":
        raise ValueError(f"An empty value. For letters without one: not {name}:*")
    values = FIELDS[name].values
    if values and not pattern.has_stars:
        return _one_of(name, pattern.text, values)
    return pattern


def _one_of(name: str, text: str, values: tuple[str, ...]) -> Pattern:
    if text.lower() in values:
        return Pattern((text.lower(),))
    meant = meant_value(name, text)
    guess = f"Did you mean {meant!r}?" if meant else f"It is one of {', '.join(values)}."
    raise ValueError(f"There is no {name} {text!r}. {guess}")
