"""What goes into a store of dead letters, and what comes out of it?

A letter is named by its source, the place it was taken from (a DLQ that is not the usual one of its source) and its id there. The
store numbers letters in the order in which they arrive. Times are seconds since 1970.
"""

import enum
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from unpoison.model.dead_letter import DeadLetter, WholeLetter


class StoredLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter as the store has it. `duplicate_of` is the number of the letter that may be the same. `sealed` is the encrypted
    original of one that is redacted, where that was asked for."""

    number: int
    letter: DeadLetter
    place: str = ""
    arrived_at: float = 0.0
    duplicate_of: int | None = None
    headers: tuple[tuple[str, Any], ...] = ()
    native: bytes | None = None
    sealed: bytes | None = None

    @property
    def whole(self) -> WholeLetter:
        """What its broker needs to send it back."""
        return WholeLetter(letter=self.letter, place=self.place, headers=self.headers, native=self.native, sealed=self.sealed)


class Turn(NamedTuple):
    """Who collects which DLQ."""

    source: str
    place: str
    collector: str


class Ingested(NamedTuple):
    """What became of letters: how many are new, and how many the store had already. `duplicates` of the new ones are marked."""

    new: int = 0
    known: int = 0
    duplicates: int = 0


class Order(enum.Enum):
    """By the last failure, or as they arrived."""

    TIME = "failed_at"
    ARRIVAL = "arrival"


class Position(NamedTuple):
    """Where a letter stands in any order."""

    failed_at: float
    number: int


class Page(NamedTuple):
    """Letters in their order. `next` is where the following page begins; None after the last one."""

    letters: tuple[StoredLetter, ...]
    next: Position | None


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters that matched a filter at one moment, by their numbers."""

    where: str
    numbers: "array[int]"

    @property
    def count(self) -> int:
        return len(self.numbers)


STATE, NOTE, OWNER, DELETED = "state", "note", "owner", "deleted"


class Change(NamedTuple):
    """What is to be changed about letters: their STATE, NOTE or OWNER, or that they are DELETED.

    A letter that waits can be given another state, and one that does not can be made to wait again. `only` letters in this state
    are changed; None is any.
    """

    what: str
    to: str | None = None
    only: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """How many letters were changed, and which. `gone` ones were deleted meanwhile, or are not as they had to be."""

    changed: int = 0
    gone: int = 0
    numbers: Sequence[int] = field(default=(), compare=False, repr=False)


class AuditEntry(NamedTuple):
    """One change. `about` is the filter or the group; `before` and `after` are what was changed, and to what.

    Of letters `before` is a list of values, each with the numbers of the letters that had it: [["dead", "1-480,490"]].
    """

    number: int
    at: float
    who: str
    what: str
    about: str
    letters: int
    before: Any
    after: Any


class TextIndexState(NamedTuple):
    """Whether there is an index for searching in texts, and how many letters it is behind at most."""

    is_there: bool
    behind: int


class GroupWork(msgspec.Struct, frozen=True, kw_only=True):
    """What people have noted about a group. It outlives all of its letters.

    `resolved_in` is the version of the code that no longer fails so; `regressed_in` the newer one that did.
    """

    note: str | None = None
    owner: str | None = None
    links: tuple[str, ...] = ()
    snoozed_until: float | None = None
    resolved_in: str | None = None
    resolved_at: float | None = None
    regressed_in: str | None = None
    regressed_at: float | None = None

    def state(self, now: float) -> str:
        """What the group is at this moment: regressed, resolved, snoozed or open."""
        if self.regressed_in is not None:
            return "regressed"
        if self.resolved_in is not None:
            return "resolved"
        return "snoozed" if self.snoozed_until is not None and self.snoozed_until > now else "open"


NO_WORK = GroupWork()


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The letters of one fingerprint.

    `counts` is how many there are, by source and state. `first_seen` and `last_seen` are the first and the last failure that the
    store ever had in this group, also of letters that have been deleted; `sample` is the number of the one that failed last, None
    if no letter is left. `trend` is how many letters came, by the hour in which they failed (hours since 1970).
    """

    fingerprint: str
    counts: Mapping[str, Mapping[str, int]]
    first_seen: float
    last_seen: float
    sample: int | None
    classification: str
    error_type: str
    error: str
    versions: tuple[str, ...] = ()
    work: GroupWork = NO_WORK
    trend: Mapping[int, int] = {}

    @property
    def count(self) -> int:
        return sum(count for by_state in self.counts.values() for count in by_state.values())


Progress = Callable[[int, int], None]
"""Told how many letters were read, and how many there are to read at most."""
