"""What a store of dead letters must do: keep, count, find and change them. Its values are in `values.py`."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from unpoison.filters.filter import Filter
from unpoison.model.dead_letter import WholeLetter
from unpoison.redaction.rules import Redact
from unpoison.store.letters.rules_in_force import InForce
from unpoison.store.letters.values import (
    AuditEntry,
    Change,
    Changed,
    GroupWork,
    Ingested,
    Order,
    Page,
    Position,
    Progress,
    Selection,
    StoredGroup,
    StoredLetter,
    TextIndexState,
    Turn,
)


class StoreRedaction(Protocol):
    """The redaction of one store, as one process sees it."""

    @property
    def in_force(self) -> InForce:
        """The rules."""

    def read(self) -> None:
        """Learn them from the store, and add those of this process."""

    def why_not(self) -> str:
        """Why letters cannot come into the store from here; empty if they can."""

    def remove(self, rules: Sequence[Redact], by: str) -> InForce:
        """Take rules back, for letters that come from now on."""

    def sealed(self, stored: StoredLetter) -> StoredLetter:
        """With its original as it is kept: for another store."""

    def note_revealed(self, about: str, count: int, by: str, reason: str) -> None:
        """Have the audit log know that somebody is about to see these as they were."""

    def originals_by_key(self) -> Mapping[str, int]:
        """How many originals are encrypted with each key."""


class LetterStore(Protocol):
    """Used by one thread, on a connection of its own. Raises StoreUnavailable while it is away, and can be opened again then.

    A filter means here what it means everywhere. `now` is the moment at which its ages are told, by default the store's own time.
    `state` narrows to letters of one state; None is any.
    """

    def open(self, *, create: bool = True) -> None:
        """As `Store.open`."""

    def close(self) -> None: ...

    def put(self, letters: Sequence[WholeLetter], turn: Turn | None = None) -> Ingested:
        """Keep these letters, redacted. When it returns they are on disk. One that the store has already changes nothing,
        whatever has become of it by then. If it raises, some may be kept: put all of them again. Raises CannotKeep if one of
        them is why, and TurnLost if it is no longer the turn of the collector that has read them."""

    def may_collect(self, turn: Turn, seconds: float) -> bool:
        """Whether this collector may take letters from this DLQ for so many seconds. It has written, so the store can."""

    def end_collecting(self, turn: Turn) -> None:
        """This collector takes no more."""

    def claim(self, numbers: Sequence[int], *, by: str, seconds: float) -> Sequence[int]:
        """Those of these letters that wait and that nobody else works on. For so many seconds nobody else does."""

    def release(self, numbers: Sequence[int], *, by: str) -> None:
        """End claims before their time."""

    def get(self, number: int) -> StoredLetter | None: ...

    def find(self, letter_id: str, source: str | None = None, place: str | None = None) -> Sequence[StoredLetter]:
        """Letters with this id."""

    def page(
        self,
        where: Filter | None = None,
        *,
        state: str | None = None,
        order: Order = Order.TIME,
        is_descending: bool = True,
        after: Position | None = None,
        limit: int = 50,
        now: float | None = None,
        progress: Progress | None = None,
    ) -> Page:
        """Letters behind this position. The page before one is the page after its first letter, in the opposite direction."""

    def count(
        self, where: Filter | None = None, *, state: str | None = None, now: float | None = None, progress: Progress | None = None
    ) -> int: ...

    def counts(self, source: str) -> Mapping[str, int]:
        """How many letters this source has, by state. Of a source by another name in other case there are others."""

    def counts_at(self, place: str) -> Mapping[str, int]:
        """How many letters were taken from this DLQ, by state."""

    def sources_at(self, place: str) -> Sequence[str]:
        """The sources of the letters that were taken from this DLQ."""

    def select(
        self, where: Filter | None = None, *, state: str | None = None, now: float | None = None, progress: Progress | None = None
    ) -> Selection:
        """The letters that match now, as a set that stays what it is."""

    def named(
        self, numbers: Sequence[int], source: str | None = None, place: str | None = None
    ) -> Sequence[tuple[int, str, str]]:
        """Number, id and state of those of these letters that are of this source, or were taken from this DLQ."""

    def groups(
        self,
        where: Filter | None = None,
        *,
        state: str | None = None,
        limit: int | None = None,
        trend_since: float | None = None,
        now: float | None = None,
        progress: Progress | None = None,
    ) -> Sequence[StoredGroup]:
        """The groups of these letters, the largest first; of equal ones the latest. The trend is told from this moment on."""

    def change(
        self, selection: Selection, change: Change, *, by: str, progress: Progress | None = None, claimant: str = ""
    ) -> Changed:
        """Change these letters and no others; what somebody else than the `claimant` has claimed is neither moved nor deleted.
        `by` is who does it, for the audit log. If it raises, some may be changed: each of them with its entry in the log."""

    def expire(self, where: Filter, *, by: str, progress: Progress | None = None) -> Changed:
        """Delete the letters that match."""

    def original(self, stored: StoredLetter) -> WholeLetter:
        """The letter as it was before it was redacted, to send it back. Raises OriginalUnavailable if it is not kept, or
        cannot be read here."""

    def reveal(self, stored: StoredLetter, *, by: str, reason: str) -> WholeLetter:
        """The same for a person: who sees it, and why, is in the audit log before this returns."""

    def told(self, where: Filter | None, state: str | None = None) -> str:
        """A filter as the audit log may have it: without values that are redacted."""

    @property
    def redaction(self) -> "StoreRedaction":
        """By which rules what comes into this store is redacted."""

    def change_group(self, fingerprint: str, *, by: str, **given: Any) -> GroupWork:
        """Change what is noted about a group: its `note`, `owner`, `links`, `snoozed_until` or `resolved_in`. The rest stays."""

    def regroup(self, progress: Progress | None = None) -> int:
        """Give letters whose fingerprint is of an older version of unpoison the present one. Returns how many there were."""

    def audit(self, *, before: int | None = None, limit: int = 50) -> Sequence[AuditEntry]:
        """What was changed, the latest first, before the entry of this number."""

    def index_text(self, seconds: float | None = None) -> TextIndexState:
        """Bring the index of texts up to date, or work at it for so long. Searching is right without it, and slower."""

    def text_index(self) -> TextIndexState: ...
