"""How many letters are there, of which kind? Counted when they change, so that nobody has to count them when they are looked at.

What changes is added up first and then written in the transaction that changes the letters, each table in the order of its key.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from unpoison.store.letters.columns import NO_TIME
from unpoison.store.letters.rows import Prepared
from unpoison.store.rows import Execute, insert

HOUR = 3_600
_HOURS = 2**36 // HOUR
"""A letter whose time is beyond any calendar is in no hour."""

_COUNTS = "unpoison_letter_counts (fingerprint, source, classification, state, letters)"
_ADD_COUNTS = """
on conflict (fingerprint, source, classification, state)
do update set letters = unpoison_letter_counts.letters + excluded.letters"""
_HOUR_COUNTS = "unpoison_letter_hours (fingerprint, source, hour, letters)"
_ADD_HOURS = """
on conflict (fingerprint, source, hour) do update set letters = unpoison_letter_hours.letters + excluded.letters"""
_TRACEBACKS = "unpoison_tracebacks (digest, letters, traceback)"
_ADD_TRACEBACKS = """
on conflict (digest) do update set letters = unpoison_tracebacks.letters + excluded.letters"""
_VERSIONS = "unpoison_letter_versions (fingerprint, source, code_version, first_seen, last_seen)"
_SEE_VERSIONS = """
on conflict (fingerprint, source, code_version) do update set
    first_seen = case when excluded.first_seen < v.first_seen then excluded.first_seen else v.first_seen end,
    last_seen = case when excluded.last_seen > v.last_seen then excluded.last_seen else v.last_seen end
""".replace("v.", "unpoison_letter_versions.")
_GROUPS = "unpoison_letter_groups (fingerprint, first_seen, last_seen, sample, classification, error_type, error)"
_IS_LATER = "excluded.last_seen >= g.last_seen or g.sample is null"
_SEE_GROUPS = f"""
on conflict (fingerprint) do update set
    first_seen = case when excluded.first_seen < g.first_seen then excluded.first_seen else g.first_seen end,
    last_seen = case when excluded.last_seen > g.last_seen then excluded.last_seen else g.last_seen end,
    sample = case when {_IS_LATER} then excluded.sample else g.sample end,
    classification = case when {_IS_LATER} then excluded.classification else g.classification end,
    error_type = case when {_IS_LATER} then excluded.error_type else g.error_type end,
    error = case when {_IS_LATER} then excluded.error else g.error end
""".replace("g.", "unpoison_letter_groups.")


class Kind(NamedTuple):
    """What letters are counted by."""

    fingerprint: str
    source: str
    classification: str
    state: str


class _Seen(NamedTuple):
    first: float
    last: float
    sample: int = 0
    of: tuple[str, str, str] = ("", "", "")

    def with_(self, other: "_Seen") -> "_Seen":
        latest = other if other.last >= self.last else self
        return latest._replace(first=min(self.first, other.first))


class Changes:
    """What one transaction changes about the counts."""

    def __init__(self) -> None:
        self._counts: Counter[Kind] = Counter()
        self._hours: Counter[tuple[str, str, int]] = Counter()
        self._tracebacks: Counter[bytes] = Counter()
        self._texts: dict[bytes, str] = {}
        self._groups: dict[str, _Seen] = {}
        self._versions: dict[tuple[str, str, str], _Seen] = {}
        self._removed: dict[str, set[int]] = {}

    def add(self, prepared: Prepared, number: int, arrived_at: float) -> None:
        """A new letter."""
        letter, source = prepared.letter, prepared.source
        group = letter.fingerprint
        self._counts[Kind(group, source, letter.classification, letter.state)] += 1
        last = arrived_at if prepared.failed_at == NO_TIME else prepared.failed_at
        first = prepared.first_failed_at
        seen = _Seen(last if first == NO_TIME else first, last, number, (letter.classification, letter.error_type, letter.error))
        _see(self._groups, group, seen)
        if letter.code_version is not None:
            _see(self._versions, (group, source, letter.code_version), _Seen(last, last))
        if 0 <= last < _HOURS * HOUR:
            self._hours[group, source, int(last // HOUR)] += 1
        if prepared.traceback is not None:
            self._tracebacks[prepared.traceback] += 1
            self._texts[prepared.traceback] = letter.traceback

    def move(self, kind: Kind, state: str) -> None:
        """A letter that has another state now."""
        self._counts[kind] -= 1
        self._counts[kind._replace(state=state)] += 1

    def remove(self, number: int, kind: Kind, traceback: bytes | None) -> None:
        """A letter that was deleted. What was seen of its group stays known."""
        self._counts[kind] -= 1
        self._removed.setdefault(kind.fingerprint, set()).add(number)
        if traceback is not None:
            self._tracebacks[traceback] -= 1

    def write(self, run: Execute) -> Sequence[tuple[str, str, str]]:
        """Returns which groups have got letters, by fingerprint, source and version."""
        tracebacks = [(digest, count, self._texts.get(digest, "")) for digest, count in sorted(self._tracebacks.items())]
        insert(run, _TRACEBACKS, tracebacks, _ADD_TRACEBACKS)
        groups = [(group, seen.first, seen.last, seen.sample, *seen.of) for group, seen in sorted(self._groups.items())]
        insert(run, _GROUPS, groups, _SEE_GROUPS)
        insert(run, _COUNTS, [(*kind, count) for kind, count in sorted(self._counts.items()) if count], _ADD_COUNTS)
        insert(run, _HOUR_COUNTS, [(*key, count) for key, count in sorted(self._hours.items())], _ADD_HOURS)
        versions = [(*key, seen.first, seen.last) for key, seen in sorted(self._versions.items())]
        insert(run, _VERSIONS, versions, _SEE_VERSIONS)
        if self._removed:
            for digest in sorted(digest for digest, count in self._tracebacks.items() if count < 0):
                run("delete from unpoison_tracebacks where digest = ? and letters <= 0", (digest,))
            for group, numbers in sorted(self._removed.items()):
                _give_sample(run, group, numbers)
        return [version[:3] for version in versions]


_Key = TypeVar("_Key")


def _see(seen: dict[_Key, _Seen], key: _Key, new: _Seen) -> None:
    known = seen.get(key)
    seen[key] = new if known is None else known.with_(new)


def _give_sample(run: Execute, group: str, removed: Collection[int]) -> None:
    """Another sample, if the one that there was has been deleted."""
    found = run("select sample from unpoison_letter_groups where fingerprint = ?", (group,)).fetchall()
    if not found or found[0][0] not in removed:
        return
    latest = (
        "select failed_at, no from unpoison_letters where fingerprint = ? and state = ? order by failed_at desc, no desc limit 1"
    )
    states = {kind.state for kind in counts(run, "fingerprint = ?", (group,))}  # of each state the index knows the latest
    newest = [tuple(row) for state in states for row in run(latest, (group, state)).fetchall()]
    sample = max(newest)[1] if newest else None
    run("update unpoison_letter_groups set sample = ? where fingerprint = ?", (sample, group))


def counts(run: Execute, where: str = "true", values: Sequence[object] = ()) -> Mapping[Kind, int]:
    """How many letters there are of each kind. The condition may use the names of `Kind`."""
    found = run(
        f"select fingerprint, source, classification, state, letters from unpoison_letter_counts where letters > 0 and ({where})",
        values,
    )
    return {Kind(*row[:4]): row[4] for row in found.fetchall()}
