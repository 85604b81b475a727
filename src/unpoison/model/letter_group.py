"""Which dead letters are of one kind? Those with one fingerprint."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from unpoison.model.dead_letter import DeadLetter, iso


class LetterGroup(msgspec.Struct, kw_only=True):
    """The letters of one fingerprint, as far as they were counted. The example is the one that failed last."""

    fingerprint: str
    count: int = 0
    sources: dict[str, int] = {}
    first_failed_at: float = float("inf")
    last_failed_at: float = float("-inf")
    example: str = ""
    classification: str = ""
    error_type: str = ""
    error: str = ""
    state: str | None = None
    """What people have said of it in a store: open, snoozed, resolved, or regressed, which is resolved and seen again since."""
    owner: str | None = None
    note: str | None = None
    trend: dict[int, int] = {}
    """How many letters came, by the hour in which they failed (hours since 1970), where that is known."""

    def add(self, letter: DeadLetter) -> None:
        self.count += 1
        self.sources[letter.source] = self.sources.get(letter.source, 0) + 1
        self.first_failed_at = min(self.first_failed_at, letter.first_failed_at)
        if letter.last_failed_at >= self.last_failed_at:
            self.last_failed_at, self.example = letter.last_failed_at, letter.id
            self.classification, self.error_type, self.error = letter.classification, letter.error_type, letter.error

    def as_json(self) -> dict[str, object]:
        said = {} if self.state is None else {"state": self.state, "owner": self.owner, "note": self.note}
        return {
            "group": self.fingerprint,
            "count": self.count,
            "sources": self.sources,
            "classification": self.classification,
            "error_type": self.error_type,
            "error": self.error,
            "first_failed_at": iso(self.first_failed_at),
            "last_failed_at": iso(self.last_failed_at),
            "example": self.example,
            **said,
        }


def grouped(letters: Iterable[DeadLetter]) -> list[LetterGroup]:
    """The groups of these letters, the largest first; of equal ones the latest."""
    found: dict[str, LetterGroup] = {}
    for letter in letters:
        group = found.get(letter.fingerprint)
        if group is None:
            group = found[letter.fingerprint] = LetterGroup(fingerprint=letter.fingerprint)
        group.add(letter)
    return _in_order(found.values())


def merged(groups: Iterable[LetterGroup]) -> list[LetterGroup]:
    """Groups that were counted in several DLQs, each fingerprint once."""
    found: dict[str, LetterGroup] = {}
    for group in groups:
        known = found.setdefault(group.fingerprint, group)
        if known is not group:
            found[group.fingerprint] = _sum(known, group)
    return _in_order(found.values())


def _sum(one: LetterGroup, other: LetterGroup) -> LetterGroup:
    latest = one if one.last_failed_at >= other.last_failed_at else other
    return msgspec.structs.replace(
        latest,
        count=one.count + other.count,
        sources=_added(one.sources, other.sources),
        first_failed_at=min(one.first_failed_at, other.first_failed_at),
    )


Key = TypeVar("Key")


def _added(one: Mapping[Key, int], other: Mapping[Key, int]) -> dict[Key, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def _in_order(groups: Iterable[LetterGroup]) -> list[LetterGroup]:
    return sorted(groups, key=lambda group: (-group.count, -group.last_failed_at, group.fingerprint))
