"""Words for people: counts ("1 message", "12,345 dead letters"), and text from others made safe to print.

A payload, a message id or the text of an exception may hold anything: escape sequences that move the cursor or retitle the
window, characters that reverse the direction of reading, invisible ones. `visible` and `one_line` write out whatever a terminal
would act on as `\\x1b` and the like, so that it can be seen and does nothing.
"""

import json
import re
import unicodedata
from typing import Any


def counted(count: int, noun: str, plural: str = "") -> str:
    """The count with its noun. `plural` only where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


_ACTS_ON_TERMINALS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline; the upper ones are escape sequences of one byte
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of reading
    "\u200b\u2060\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible
    "\u2028\u2029\ud800-\udfff]"  # line ends of another kind; halves of characters, which cannot be printed
)
_LAYOUT = str.maketrans({"\n": r"\n", "\t": r"\t"})


def visible(text: str) -> str:
    """The text with everything written out that a terminal would act on. Lines and tabs stay."""
    return _ACTS_ON_TERMINALS.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str, limit: int | None = None) -> str:
    """As `visible`, and without line ends; cut where it is longer than the limit."""
    text = text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
    return visible(text).translate(_LAYOUT)


def first_line(text: str, limit: int = 200) -> str:
    """The first line of an error's text. Of a longer one both ends: clients put what happened last, as in "[Errno 111] Connection
    refused"."""
    line = text.strip().partition("\n")[0]
    if len(line) <= limit:
        return line
    head = limit // 2
    return f"{line[:head].rstrip()} … {line[head + 3 - limit :].lstrip()}"


def pointed_at(text: str, start: int, end: int) -> str:
    """Two lines, indented: the text around the place, and below it what points at the place."""
    before, marked, after = text[:start], text[start:end], text[end:]
    if len(before) > _AROUND:
        before = "…" + before[1 - _AROUND :]
    marked, after = one_line(marked, _AROUND), one_line(after, _AROUND)
    before = one_line(before)
    return f"  {before}{marked}{after}".rstrip() + f"\n  {' ' * _cells(before)}{'^' * max(1, _cells(marked))}"


_AROUND = 60
"""Characters that are shown before, at and after a place in a long text."""


def _cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    wide = sum(1 for character in text if unicodedata.east_asian_width(character) in "WF")
    return len(text) + wide - sum(1 for character in text if unicodedata.combining(character))


def acts_on_terminals(body: bytes) -> bool:
    """Whether a terminal would do more with these bytes than show them."""
    try:
        return _ACTS_ON_TERMINALS.search(body.decode()) is not None
    except UnicodeDecodeError:
        return True


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """One JSON document, harmless on a terminal too: JSON has an escape for each of those characters."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return _ACTS_ON_TERMINALS.sub(lambda found: json.dumps(found[0])[1:-1], text)


def in_words(seconds: float) -> str:
    """A duration as a person says it: 0.35 s, 1.5 s, 90 s, 12 min, 5 h."""
    if seconds < 1:
        return f"{max(seconds, 0.01):.2g} s" if seconds > 0 else "0 s"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
