"""What does a dead letter of another system tell, and how is it shown like one of ours?

Every reader beside this file makes a `Told` of what stands in headers or in a body. All of that is data from strangers: texts are
cut, numbers and times count only within bounds, and what makes no sense is left out. No reader raises, whatever it is given.
"""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from unpoison.model.dead_letter import DeadLetter
from unpoison.model.failure import NAME_LIMIT, TEXT_LIMIT, TRACEBACK_LIMIT, cap
from unpoison.model.message import MOST_COUNTED, MOST_MOMENT, UNTRIED, Counters, Message, as_text
from unpoison.model.verdict import ErrorClassification
from unpoison.port.serialization import foreign_letter

UNKNOWN_RULE = "something else than unpoison put it here"

MOST_SOURCE = 255
"""Characters of the longest name that a queue or topic has on any broker."""
MOST_FACT = 1_000
"""Characters of a fact, such as the arguments of a task."""
MOST_HEADERS = 100
"""Headers that are read out of a body."""
LONGEST_NUMBER = 18
"""Digits: an offset has 64 bits."""

Facts = dict[str, str | int]


class Content(msgspec.Struct, frozen=True):
    """The message inside of an envelope, as it was sent. Key and headers are those of the envelope's own message where it says
    nothing about them."""

    body: bytes
    key: bytes | None = None
    is_key_told: bool = False
    is_tombstone: bool = False
    headers: Mapping[str, str] | None = None
    content_type: str = ""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What another system says about one dead letter. `source` is where the message came from, and where a replay sends it;
    empty if that is not told. Without `content` the message is the original one."""

    rule: str
    source: str = ""
    reason: str = ""
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    classification: str = str(ErrorClassification.UNKNOWN)
    first_failed_at: float | None = None
    last_failed_at: float | None = None
    attempts: int = 0
    original: Facts = {}
    content: Content | None = None

    def message(self, carried: Message) -> Message:
        """The original message; `carried` is the one in the DLQ."""
        content = self.content
        if content is None:
            return carried
        told_key = None if content.key is None else as_text(content.key)
        key = told_key if content.is_key_told else carried.key
        headers = carried.headers if content.headers is None else content.headers
        return Message(carried.id, carried.source, content.body, key, headers, content.is_tombstone)

    def letter(self, carried: Message, kind: str, at: float, counters: Counters = UNTRIED) -> DeadLetter:
        """The letter. `kind` stands for an error that is not named, `at` for the time of a failure that is not told."""
        last = at if self.last_failed_at is None else self.last_failed_at
        letter = foreign_letter(
            self.message(carried),
            self.rule,
            self.error_type or kind,
            last,
            counters,
            reason=self.reason,
            error=self.error,
            traceback=self.traceback,
            original=self.original,
        )
        first = min(letter.first_failed_at, last, self.first_failed_at or last)
        attempts = max(letter.attempts, self.attempts)
        return msgspec.structs.replace(letter, classification=self.classification, first_failed_at=first, attempts=attempts)


def text(value: object, most: int = MOST_FACT) -> str:
    """A text of any type, cut at its end; empty for what is not there."""
    if isinstance(value, bytes | bytearray | memoryview | str):
        value = value[: 4 * most]  # no more is decoded than is shown; a character has four bytes at most
    try:
        return as_text(value)[:most]
    except (ValueError, TypeError, RecursionError):
        return ""


def name(value: object) -> str:
    """The name of an error: one line."""
    return " ".join(text(value, NAME_LIMIT).split())


def long_text(value: object) -> str:
    """The text of an error: both ends of it."""
    return cap(text(value, sys.maxsize // 4), TEXT_LIMIT)


def trace(value: object) -> str:
    """A traceback: both ends of it, since Java tells the cause last."""
    return cap(text(value, sys.maxsize // 4), TRACEBACK_LIMIT)


def place(value: object) -> str:
    """The name of a queue or topic; empty if none can have it."""
    found = text(value, MOST_SOURCE + 1)
    return found if 0 < len(found) <= MOST_SOURCE and found.isprintable() and found == found.strip() else ""


def number(value: object) -> int | None:
    """A partition, an offset, a count: of decimal digits. None for anything else, such as a negative one."""
    if isinstance(value, bytes):
        value = value[: LONGEST_NUMBER + 1].decode("ascii", "replace")
    if isinstance(value, str):
        is_one = len(value) <= LONGEST_NUMBER and value.isascii() and value.isdecimal()
        return int(value) if is_one else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 10**LONGEST_NUMBER else None


def count(value: object) -> int:
    """How often something happened; 0 if that is not told."""
    return min(number(value) or 0, MOST_COUNTED)


def from_big_endian(value: bytes | None, *sizes: int) -> int | None:
    """A number as Java writes it into a header, in so many bytes."""
    if value is None or len(value) not in sizes:
        return None
    found = int.from_bytes(value, "big", signed=len(value) > 1)
    return found if found >= 0 else None


_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""Above what a number cannot be the seconds of any date, and what it is divided by then: it is nano-, micro- or milliseconds."""


def moment(value: object) -> float | None:
    """Seconds since 1970, from a number of seconds, milli-, micro- or nanoseconds, or from ISO 8601."""
    try:
        if isinstance(value, str) and (digits := number(value)) is not None:
            value = digits
        if isinstance(value, str):
            parsed = datetime.fromisoformat(value[:64])
            found = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found = float(value)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    found = next((found / divisor for above, divisor in _UNITS if found > above), found)
    return found if 0 < found <= MOST_MOMENT else None


def classification(value: object) -> str:
    """One of our words, in any case; anything else says nothing that we could act on."""
    word = text(value, NAME_LIMIT).strip().lower()
    return word if word in _CLASSES else str(ErrorClassification.UNKNOWN)


_CLASSES = frozenset(str(each) for each in ErrorClassification)


def known(facts: Mapping[str, Any]) -> Facts:
    """Those that are told."""
    return {name: value for name, value in facts.items() if value is not None and value != ""}
