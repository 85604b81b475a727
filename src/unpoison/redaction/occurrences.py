"""Where else in a letter does a value stand that was redacted in one place?

Exceptions quote what they fail on: as it is, as `repr` or JSON write it, encoded for a URL, or cut in the middle. All of these
forms are looked for, in any case, and of longer values every piece.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from urllib.parse import quote

from unpoison.redaction.markers import MASKED, between

LEAST = 3
"""Characters of a value that is looked for in errors. A shorter one would be found everywhere."""
LEAST_ELSEWHERE = 6
"""The same for other values of the letter: what stands there is often short, and means something else."""
PIECE = 8
"""Of a value of two such blocks or more, each piece is found that has a whole block in it."""
LEAST_PIECE = 12
"""Characters of a piece that is redacted."""
LONGEST = 10_000
"""Characters of a value up to which it is looked for in every form. A longer one is found by its pieces."""
_DIFFERENT = 5
"""Different characters that a piece has: a row of spaces or dashes is none."""
_NOT_LOOKED_FOR = ("true", "false", "null", "none")


_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")
"""What is written in one form only."""


class Occurrences:
    """Values that are redacted, and the texts in which they are looked for."""

    def __init__(self, values: Iterable[str], least: int = LEAST) -> None:
        stripped = {value.strip() for value in values}
        self._values = {value for value in stripped if len(value) >= least and value.lower() not in _NOT_LOOKED_FOR}

    def __bool__(self) -> bool:
        return bool(self._values)

    def masked(self, text: str) -> str:
        """The text without these values."""
        if not self._values or not text:
            return text
        return between(text, self._masked)

    def _masked(self, text: str) -> str:
        folded = text.lower()
        for form, lower in self._forms:
            if lower in folded:
                text = _without(form, text)
                folded = text.lower()
        return between(text, self._without_pieces) if self._long else text

    def _without_pieces(self, text: str) -> str:
        for value in self._long:
            text = between(text, partial(_without_pieces, value))
        return text

    @cached_property
    def _forms(self) -> list[tuple[str, str]]:
        """The longest first: one may be a part of another. Each with how it is compared."""
        found = sorted({form for value in self._values for form in forms(value)}, key=len, reverse=True)
        return [(form, form.lower()) for form in found]

    @cached_property
    def _long(self) -> list[str]:
        return sorted((value for value in self._values if len(value) >= 2 * PIECE), key=len)


def forms(value: str) -> set[str]:
    """The ways in which a text is written in errors."""
    if len(value) > LONGEST:
        return {value}
    if _PLAIN.fullmatch(value):
        found = {value}
    else:
        found = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        found |= {repr(form)[1:-1] for form in found} | {repr(form.encode("utf-8", "backslashreplace"))[2:-1] for form in found}
        found.add(quote(value, safe="", errors="replace"))
    try:
        number = float(value)
    except ValueError:
        return found
    return found | {str(number), str(int(number))} if abs(number) < 1e15 and number == int(number) else found | {str(number)}


def _without(form: str, text: str) -> str:
    """Where it is not only a part of a word or number: a code of three digits stands in many larger numbers."""
    if len(form) >= LEAST_ELSEWHERE:
        return between(text, partial(_replaced, form, form.lower()))
    return re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", MASKED, text, flags=re.IGNORECASE)


def _replaced(form: str, lower: str, text: str) -> str:
    """In any case. A regular expression would have to be compiled for each value of each letter."""
    folded = text.lower()
    if len(folded) != len(text) or len(lower) != len(form):  # some letters are two in lower case
        return re.sub(re.escape(form), MASKED, text, flags=re.IGNORECASE).replace(form, MASKED)
    parts, done = list[str](), 0
    while (at := folded.find(lower, done)) >= 0:
        parts += [text[done:at], MASKED]
        done = at + len(form)
    return "".join([*parts, text[done:]]) if parts else text


def _without_pieces(value: str, text: str) -> str:
    parts, done = list[str](), 0
    for at, place in sorted(_places(value, text)):
        if at < done:
            continue
        start, end = _around(value, place, text, at, done)
        if end - start >= LEAST_PIECE and len(set(text[start:end])) >= _DIFFERENT:
            parts += [text[done:start], MASKED]
            done = end
    return "".join([*parts, text[done:]]) if parts else text


def _places(value: str, text: str) -> Iterator[tuple[int, int]]:
    """Where blocks of the value stand in the text: their places there, and in the value."""
    starts = range((len(value) - PIECE) // PIECE * PIECE, -1, -PIECE)  # of equal blocks the first one counts
    if len(value) > len(text):
        windows = {text[at : at + PIECE] for at in range(len(text) - PIECE + 1)}
        blocks = {block: at for at in starts if (block := value[at : at + PIECE]) in windows}
    else:
        blocks = {value[at : at + PIECE]: at for at in starts}
    for block, place in blocks.items():
        at = text.find(block)
        while at >= 0:
            yield at, place
            at = text.find(block, at + 1)


def _around(value: str, place: int, text: str, at: int, least: int) -> tuple[int, int]:
    """How far the text is the value, around a place where they are the same."""
    before = 0
    while at - before > least and place - before > 0 and text[at - before - 1] == value[place - before - 1]:
        before += 1
    length = PIECE
    while at + length < len(text) and place + length < len(value) and text[at + length] == value[place + length]:
        length += 1
    return at - before, at + length
