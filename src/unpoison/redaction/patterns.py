"""Which values have a form by which they can be told anywhere in a text?

A pattern has a regular expression, and where that is not enough a check of what it finds: a card number has a check digit.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

_WORD = re.compile(r"[^\s-]+")
_MOST_WORDS = 20


def _anything(_: str) -> bool:
    return True


class Pattern(NamedTuple):
    """What finds values in a text. `hint`: characters of which one stands in every such value."""

    expression: str
    holds: Callable[[str], bool] = _anything
    hint: str = ""

    def in_text(self, text: str) -> list[tuple[int, int]]:
        """Where values begin and end."""
        if self.hint and not any(character in text for character in self.hint):
            return []
        matches = _compiled(self.expression).finditer(text)
        return [place for found in matches if found[0] and (place := self._place(found)) is not None]

    def _place(self, found: re.Match[str]) -> tuple[int, int] | None:
        """The longest part that holds: a number may have others before or behind it, with nothing but a space between."""
        if self.holds(found[0]):
            return found.span()
        words = [word.span() for word in _WORD.finditer(found[0])][:_MOST_WORDS]
        parts = [(first[0], last[1]) for at, first in enumerate(words) for last in words[at:]]
        for start, end in sorted(parts, key=lambda part: part[0] - part[1]):
            if self.holds(found[0][start:end]):
                return found.start() + start, found.start() + end
        return None

    def may_be_in(self, text: str) -> bool:
        """Whether it is worth looking into the strings of this text. Only to be asked of patterns that have a name."""
        return _compiled(self.expression).search(text) is not None


@lru_cache(maxsize=100)
def _compiled(expression: str) -> re.Pattern[str]:
    """When it is first needed: an app that redacts nothing need not wait for it."""
    return re.compile(expression)


def _luhn(text: str) -> bool:
    """Whether the last digit of a card number is right."""
    digits = [int(digit) for digit in text if digit.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def _iban(text: str) -> bool:
    """Whether the check digits of an IBAN are right."""
    plain = re.sub(r"[\s-]", "", text).upper()
    return 15 <= len(plain) <= 34 and int("".join(str(int(each, 36)) for each in plain[4:] + plain[:4])) % 97 == 1


def _phone(text: str) -> bool:
    return 8 <= sum(map(str.isdigit, text)) <= 15


NAMED: Mapping[str, Pattern] = {
    "email": Pattern(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}", hint="@"),
    "card": Pattern(r"(?<![0-9])[0-9](?:[ -]?[0-9]){12,18}(?![0-9])", _luhn),
    "iban": Pattern(r"(?ia)(?<![a-z0-9])[a-z]{2}[0-9]{2}(?:[ -]?[a-z0-9]){11,30}(?![a-z0-9])", _iban),
    "jwt": Pattern(r"eyJ[\w-]+\.[\w-]+\.[\w-]*", hint="."),
    "phone": Pattern(r"(?<![\w+])(?:\+|00)[1-9](?:[ ./()-]{0,2}[0-9]){6,14}(?![0-9])", _phone, "+0"),
}
"""By the names that rules use."""


def pattern_of(text: str) -> Pattern:
    """A pattern by its name, or of this regular expression. Raises ValueError with a text for people."""
    if text in NAMED:
        return NAMED[text]
    if re.fullmatch(r"\w*", text):
        raise ValueError(f"There is no pattern {text!r}. It is one of {', '.join(NAMED)}, or a regular expression")
    try:
        expression = _compiled(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"This is no regular expression: {error}") from None
    if expression.search("") is not None:
        raise ValueError("This regular expression also finds an empty text, so it would find everything")
    return Pattern(text)
