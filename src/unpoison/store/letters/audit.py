"""Who has changed which letters and groups, when, by which filter, and what was there before?

Each entry is written in the transaction of the change that it tells about. Entries are only ever added.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unpoison.store.letters.values import AuditEntry
from unpoison.store.rows import Execute, insert

_COLUMNS = "no, at, who, what, about, letters, before, after"


def note(
    run: Execute,
    at: float,
    *,
    who: str,
    what: str,
    about: str,
    before: Sequence[Sequence[object]],
    after: object,
    letters: int = 0,
) -> None:
    """Add an entry. Only to be called by whose turn it is."""
    last = run("select coalesce(max(no), 0) from unpoison_audit", ()).fetchall()[0][0]
    row = (last + 1, at, who, what, about, letters, _json(before), _json(after))
    insert(run, f"unpoison_audit ({_COLUMNS})", [row])


def entries(run: Execute, before: int | None, limit: int) -> list[AuditEntry]:
    """The latest first."""
    where, values = ("", ()) if before is None else ("where no < ?", (before,))
    found = run(f"select {_COLUMNS} from unpoison_audit {where} order by no desc limit ?", (*values, limit)).fetchall()
    return [AuditEntry(no, at, who, what, about, n, _read(was), _read(now)) for no, at, who, what, about, n, was, now in found]


def by_value(values: Mapping[int, object]) -> list[tuple[object, str]]:
    """Which letters had which value, by their numbers: [("dead", "1-480,490")]."""
    numbers: dict[object, list[int]] = {}
    for number, value in values.items():
        numbers.setdefault(value, []).append(number)
    return [(value, ranges(of_value)) for value, of_value in numbers.items()]


def ranges(numbers: Iterable[int]) -> str:
    """1-4,7 for 1, 2, 3, 4 and 7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # anything may stand in a database
