"""How does a text or a time stand in a column, where it cannot stand as it is?

No column holds a NUL, which PostgreSQL refuses: it is replaced. A time that is no number is NO_TIME, before all others. What was
there is in the record of the letter (`rows.py`). `filter_sql.py` knows these rules.
"""

import math

REPLACED = "\ufffd"
"""Stands for a NUL."""
NO_TIME, EARLIEST, LATEST = -math.inf, -1e308, 1e308
INDEXED = 500
"""Characters of a key or an id that are in an index: PostgreSQL refuses larger ones, and a key may have any length."""
LONGEST_NAME = 300
"""Characters of a classification or version, which are parts of keys. Only another program writes longer ones."""
MOST = 2**62
"""Whole numbers beyond this are kept as this."""


def as_column(text: str) -> str:
    """The text as both databases can hold it."""
    if "\0" in text:
        text = text.replace("\0", REPLACED)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def moment(time: float) -> float:
    try:
        time = float(time)
    except (OverflowError, TypeError, ValueError):
        return NO_TIME
    return NO_TIME if math.isnan(time) else min(max(time, EARLIEST), LATEST)


def whole(number: int) -> int:
    return min(max(int(number), -MOST), MOST)
