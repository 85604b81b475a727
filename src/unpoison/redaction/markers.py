"""What stands in the place of a value that is redacted?

`[redacted]`, or where the value can be searched for `[redacted 5f3a…]` with a keyed hash of it. A marker is never redacted again.
"""

import re
from collections.abc import Callable

MASKED = "[redacted]"
_MARKER = re.compile(r"\[redacted(?: [0-9a-f]{32})?\]")


def with_token(token: str) -> str:
    return f"[redacted {token}]"


def is_marker(text: str) -> bool:
    return _MARKER.fullmatch(text) is not None


def between(text: str, change: Callable[[str], str]) -> str:
    """The text with what stands between markers changed."""
    if MASKED[:-1] not in text:
        return change(text)
    parts, at = [], 0
    for marker in _MARKER.finditer(text):
        parts += [change(text[at : marker.start()]), marker[0]]
        at = marker.end()
    return "".join([*parts, change(text[at:])])
