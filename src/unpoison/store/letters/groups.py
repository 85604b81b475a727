"""Which groups of letters are there, how large are they, and what is known of each?"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from unpoison.store.letters.counts import HOUR, Kind
from unpoison.store.letters.noted import work_of
from unpoison.store.letters.values import NO_WORK, StoredGroup
from unpoison.store.rows import Execute
from unpoison.store.sql_store import Database

_AT_ONCE = 500
_BY_AGE = "order by first_seen"
_SEEN = "fingerprint, first_seen, last_seen, sample, classification, error_type, error"


class GroupReader:
    """Reads groups from a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def groups(self, kinds: Mapping[Kind, int], *, limit: int | None, trend_since: float | None) -> list[StoredGroup]:
        """The groups of letters that have been counted."""
        by_group: dict[str, dict[Kind, int]] = {}
        for kind, count in kinds.items():
            by_group.setdefault(kind.fingerprint, {})[kind] = count
        sizes = {group: sum(counts.values()) for group, counts in by_group.items()}
        largest = sorted(sizes.values(), reverse=True)
        least = largest[limit - 1] if limit and len(largest) > limit else 0
        wanted = [] if limit == 0 else [group for group, size in sizes.items() if size >= least]
        with self._database.reading() as run:
            seen = {row[0]: row for row in _of_groups(run, _SEEN, "unpoison_letter_groups", wanted)}
            ordered = sorted(seen, key=lambda group: (-sizes[group], -seen[group][2], group))[:limit]
            versions = _by_group(_of_groups(run, "fingerprint, code_version", "unpoison_letter_versions", ordered, _BY_AGE))
            work = work_of(run, ordered)
            hours = {} if trend_since is None else _by_group(_hours(run, ordered, trend_since))
        found = [_group(seen[group], by_group[group], versions.get(group, ()), hours.get(group, ())) for group in ordered]
        return [msgspec.structs.replace(group, work=work.get(group.fingerprint, NO_WORK)) for group in found]


def _of_groups(run: Execute, columns: str, table: str, groups: Sequence[str], more: str = "") -> list[Sequence[Any]]:
    """Rows of these groups."""
    found: list[Sequence[Any]] = []
    for start in range(0, len(groups), _AT_ONCE):
        part = groups[start : start + _AT_ONCE]
        query = f"select {columns} from {table} where fingerprint in ({', '.join('?' * len(part))}) {more}"
        found += run(query, part).fetchall()
    return found


def _hours(run: Execute, groups: Sequence[str], since: float) -> list[Sequence[Any]]:
    more = f"and hour >= {int(since // HOUR)} group by fingerprint, hour order by hour"
    return _of_groups(run, "fingerprint, hour, sum(letters)", "unpoison_letter_hours", groups, more)


def _by_group(rows: Sequence[Sequence[Any]]) -> Mapping[str, Sequence[Sequence[Any]]]:
    """What stands behind the fingerprint in each row."""
    found: dict[str, list[Sequence[Any]]] = {}
    for group, *rest in rows:
        found.setdefault(group, []).append(rest)
    return found


def _group(
    seen: Sequence[Any], kinds: Mapping[Kind, int], versions: Sequence[Sequence[Any]], hours: Sequence[Sequence[Any]]
) -> StoredGroup:
    fingerprint, first_seen, last_seen, sample, classification, error_type, error = seen
    counts: dict[str, dict[str, int]] = {}
    for kind, count in kinds.items():
        by_state = counts.setdefault(kind.source, {})
        by_state[kind.state] = by_state.get(kind.state, 0) + count
    return StoredGroup(
        fingerprint=fingerprint,
        counts=counts,
        first_seen=first_seen,
        last_seen=last_seen,
        sample=sample,
        classification=classification,
        error_type=error_type,
        error=error,
        versions=tuple(dict.fromkeys(version for (version,) in versions)),
        trend={int(hour): int(count) for hour, count in hours},
    )
