"""Which letters of a store belong to one DLQ: those of a source, or those that were taken from one place?

The letters of a source may have come from several DLQs, and a DLQ of other programs may hold letters of many sources.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from unpoison.filters.terms import And, Condition, Or, Pattern, Term
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.values import StoredLetter


class Scope(Protocol):
    """The letters that are worked on together. `source` is theirs; None where each has its own."""

    source: str | None

    def term(self, store: LetterStore) -> Term:
        """A filter that all of them match, and perhaps others: `has` decides."""

    def has(self, stored: StoredLetter) -> bool: ...

    def sources(self, store: LetterStore) -> Sequence[str]: ...

    def counts(self, store: LetterStore) -> Mapping[str, int]: ...

    def find(self, store: LetterStore, letter_id: str) -> Sequence[StoredLetter]: ...

    def named(self, store: LetterStore, numbers: Sequence[int]) -> Sequence[tuple[int, str, str]]: ...


@runtime_checkable
class HasScope(Protocol):
    """Dead letters in a store."""

    scope: Scope


class OfSource:
    """All letters of a source."""

    def __init__(self, source: str) -> None:
        self.source: str | None = source
        self._source = source

    def term(self, store: LetterStore) -> Term:
        """Letters of this source, and of those whose names differ in case only."""
        return Condition("source", "=", Pattern((self._source,)))

    def has(self, stored: StoredLetter) -> bool:
        return stored.letter.source == self._source

    def sources(self, store: LetterStore) -> Sequence[str]:
        return [self._source]

    def counts(self, store: LetterStore) -> Mapping[str, int]:
        return store.counts(self._source)

    def find(self, store: LetterStore, letter_id: str) -> Sequence[StoredLetter]:
        return store.find(letter_id, self._source)

    def named(self, store: LetterStore, numbers: Sequence[int]) -> Sequence[tuple[int, str, str]]:
        return store.named(numbers, self._source)


class OfPlace:
    """All letters that were taken from one DLQ, of whatever source they are."""

    source: str | None = None

    def __init__(self, place: str) -> None:
        self._place = place

    def term(self, store: LetterStore) -> Term:
        found: list[Term] = [Condition("source", "=", Pattern((source,))) for source in self.sources(store)]
        return Or(tuple(found)) if len(found) > 1 else found[0] if found else And((Condition("state", "=", Pattern(("",))),))

    def has(self, stored: StoredLetter) -> bool:
        return stored.place == self._place

    def sources(self, store: LetterStore) -> Sequence[str]:
        return store.sources_at(self._place)

    def counts(self, store: LetterStore) -> Mapping[str, int]:
        return store.counts_at(self._place)

    def find(self, store: LetterStore, letter_id: str) -> Sequence[StoredLetter]:
        return store.find(letter_id, place=self._place)

    def named(self, store: LetterStore, numbers: Sequence[int]) -> Sequence[tuple[int, str, str]]:
        return store.named(numbers, place=self._place)


def scope_of(letters: object, source: str) -> Scope:
    """The letters of a DLQ as they are in the store."""
    return letters.scope if isinstance(letters, HasScope) else OfSource(source)
