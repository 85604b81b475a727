"""Where do the words, fields and values of a filter begin and end?

The text is gone through once, from left to right. Every error names the place.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from unpoison.errors import FilterError
from unpoison.filters.fields import FIELDS, meant_field
from unpoison.filters.terms import KEYWORDS, Pattern
from unpoison.model.wording import one_line, pointed_at

MOST_CHARACTERS = 4_000

_OPERATORS = ":=!<>"
_HEAD = re.compile(
    r"""(?P<name>[^\W\d][\w-]*+)                                     # a field
    (?P<path>(?:\.(?:"(?:[^"\\]|\\.)*+"|[^\s."()\[\]:=!<>\\]++)      # .member or ."member"
             |\[[^\]\s"()]*+\])*+)                                   # [0] or []
    (?P<operator>!=|>=|<=|[:=<>])""",
    re.VERBOSE | re.DOTALL,
)


class Head(NamedTuple):
    """A field with its path and operator, as they were written."""

    name: str
    path: str
    operator: str


class Token(NamedTuple):
    """`kind` is "(", ")", "and", "or", "not", "end", or "text" for a word or a condition."""

    kind: str
    start: int
    end: int
    pattern: Pattern = Pattern(("",))
    is_quoted: bool = False
    head: Head | None = None
    value_start: int = 0


def tokens(text: str) -> Iterator[Token]:
    """The parts of a filter; the last one is its end."""
    if len(text) > MOST_CHARACTERS:
        problem = f"The filter has {len(text):,} characters, and may have {MOST_CHARACTERS:,}."
        fail(text, MOST_CHARACTERS, MOST_CHARACTERS, problem)
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        token = _token(text, at)
        yield token
        if token.kind == "end":
            return
        at = token.end


def _token(text: str, at: int) -> Token:
    if at == len(text):
        return Token("end", at, at)
    if text[at] in "()":
        return Token(text[at], at, at + 1)
    if text[at] == "-":
        if at + 1 == len(text) or text[at + 1].isspace() or text[at + 1] == ")":
            fail(text, at, at + 1, 'A "-" stands right before what it excludes: -error:timeout. To search for it: "-".')
        return Token("not", at, at + 1)
    if found := _HEAD.match(text, at):
        return _condition(text, at, found)
    pattern, is_quoted, end = _value(text, at, _OPERATORS)
    if not is_quoted and text[at:end].lower() in KEYWORDS:
        return Token(text[at:end].lower(), at, end)
    if end < len(text) and text[end] in _OPERATORS and not is_quoted:
        _stray_operator(text, at, end)
    _ends(text, at, end)
    return Token("text", at, end, pattern, is_quoted)


def _condition(text: str, at: int, found: re.Match[str]) -> Token:
    head = Head(found["name"], found["path"], found["operator"])
    if head.name not in FIELDS:
        _unknown(text, at, at + len(head.name), head)
    start = found.end()
    if start == len(text) or text[start].isspace() or text[start] in "()":
        fail(text, at, start, f"The value is missing: it stands right behind the operator, as in {FIELDS[head.name].example}.")
    if text[start] in _OPERATORS:
        both = text[start - len(head.operator) : start + 1]
        what = f"{both!r} is no operator. The operators are : = != > >= < <=; a value that begins with one stands in quotes."
        fail(text, start - len(head.operator), start + 1, what)
    pattern, is_quoted, end = _value(text, start, "")
    _ends(text, at, end)
    return Token("text", at, end, pattern, is_quoted, head, start)


def _value(text: str, start: int, stops: str) -> tuple[Pattern, bool, int]:
    """A word or a text in quotes, whether it has quotes, and where it ends. A backslash takes the next character as it is."""
    is_quoted = text[start] == '"'
    pieces: list[str] = []
    at, piece = start + is_quoted, ""
    while at < len(text):
        character = text[at]
        if (character == '"') if is_quoted else (character in '()"' or character in stops or character.isspace()):
            break
        if character == "\\":
            at += 1
            if at == len(text):
                fail(text, at - 1, at, r"A backslash takes the next character as it is, and there is none. For one write \\.")
            piece += text[at]
        elif character == "*" and not is_quoted:
            if piece or not pieces:  # two stars mean what one does
                pieces.append(piece)
            piece = ""
        else:
            piece += character
        at += 1
    if is_quoted:
        if at == len(text):
            fail(text, start, len(text), 'The quotes are not closed. For a quote itself write \\".')
        at += 1
    return Pattern((*pieces, piece)), is_quoted, at


def _ends(text: str, start: int, end: int) -> None:
    """What follows a word or a value is a space, a closing parenthesis or the end."""
    if end < len(text) and not (text[end].isspace() or text[end] == ")"):
        what = "opening parenthesis" if text[end] == "(" else "quote" if text[end] == '"' else "character"
        hint = "Put a space before it, or the whole text into quotes." if text[start] != '"' else "Put a space before it."
        fail(text, end, end + 1, f"This {what} stands right behind a word. {hint}")


def _stray_operator(text: str, start: int, at: int) -> NoReturn:
    if start == at:
        fail(text, at, at + 1, f"{text[at]!r} needs a field right before it, without a space: age>1h. {_quote_it(text, start)}")
    fail(text, start, at, f"{text[start:at]!r} is no field. {_quote_it(text, start)}")


def _unknown(text: str, start: int, end: int, head: Head) -> NoReturn:
    meant = meant_field(head.name)
    guess = f"Did you mean {meant!r}?" if meant else f"The fields are {', '.join(FIELDS)}."
    fail(text, start, end, f"There is no field {head.name!r}. {guess} {_quote_it(text, start)}")


def _quote_it(text: str, start: int) -> str:
    end = next((at for at in range(start, len(text)) if text[at].isspace() or text[at] in '()"'), len(text))
    word = one_line(text[start:end]) if end - start <= 40 else "…"
    return f'To search for the text put it into quotes: "{word}"'


def fail(text: str, start: int, end: int, problem: str) -> NoReturn:
    raise FilterError(problem, text, start, end, pointed_at(text, start, end))
