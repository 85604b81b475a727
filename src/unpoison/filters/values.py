"""Which number, length of time or date does a value stand for?

Each function takes the name of the field and the text, and raises ValueError with a text for people.
"""

import re
from datetime import UTC, datetime, timedelta, timezone

from unpoison.filters.terms import UNITS, Duration, Span

_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([a-z]*)", re.ASCII)
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?(Z|(?P<sign>[+-])([0-9]{2}):?([0-9]{2}))?)?",
    re.ASCII,
)


def number(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,15}", text):
        raise ValueError(f"{name} takes a whole number from 0, and {text!r} is none: {name}>=3")
    return int(text)


def duration(name: str, text: str) -> Duration:
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{name} takes a length of time, and {text!r} is none: {name}>1h, {name}<30m, {name}>=1h30m")
    for _, unit in (part.groups() for part in parts):
        if unit not in UNITS:
            units = "s, m, h, d or w (seconds to weeks)"
            said = f"{unit!r} in {text!r} is no unit" if unit else f"{text!r} has no unit"
            raise ValueError(f"{said}. Write {units}: {name}>1h")
    return Duration(sum(float(part[1]) * UNITS[part[2]] for part in parts))


def span(name: str, text: str) -> Span:
    found = _MOMENT.fullmatch(text)
    if not found:
        more = f" For a length of time: age>{text}" if _PART.fullmatch(text) else ""
        raise ValueError(f"{name} takes a day or a time in UTC, and {text!r} is neither: {_EXAMPLES.format(name=name)}.{more}")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.group(1, 2, 3, 4, 5, 6))
    fraction = found[7] or ""
    try:
        zone = _zone(found)
        moment = datetime(year, month, day, hour, minute, second, int(fraction.ljust(6, "0") or 0), zone).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not in the calendar: {error}") from None
    length = 10.0 ** -len(fraction) if fraction else 1.0 if found[6] else 60.0 if found[4] else 86_400.0
    return Span(text, moment, moment + length)


_EXAMPLES = "{name}:2026-08-01, {name}>=2026-08-01T09:30"


def _zone(found: re.Match[str]) -> timezone:
    if not found["sign"]:
        return UTC
    offset = timedelta(hours=int(found[10]), minutes=int(found[11]))
    return timezone(-offset if found["sign"] == "-" else offset)
