"""Which dead letters are of one kind? Those with one fingerprint."""

from collections.abc import Iterable

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

    def add(self, letter: DeadLetter) -> None:
        self.count += 1
        self.sources[letter.source] = self.sources.get(letter.source, 0) + 1
        self.first_failed_at = min(self.first_failed_at, letter.first_failed_at)
        if letter.last_failed_at >= self.last_failed_at:
            self.last_failed_at, self.example = letter.last_failed_at, letter.id
            self.classification, self.error_type, self.error = letter.classification, letter.error_type, letter.error

    def as_json(self) -> dict[str, object]:
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
        }


def grouped(letters: Iterable[DeadLetter]) -> list[LetterGroup]:
    """The groups of these letters, the largest first; of equal ones the latest."""
    found: dict[str, LetterGroup] = {}
    for letter in letters:
        group = found.get(letter.fingerprint)
        if group is None:
            group = found[letter.fingerprint] = LetterGroup(fingerprint=letter.fingerprint)
        group.add(letter)
    return sorted(found.values(), key=lambda group: (-group.count, -group.last_failed_at, group.fingerprint))
