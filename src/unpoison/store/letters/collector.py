"""Moves dead letters from the DLQ of a broker into the store.

A letter is stored first and then taken from the DLQ. A crash in between leaves it in both, and the store knows it again by its
identity. While the store cannot write nothing is taken from the DLQ, not even for a look: RabbitMQ and SQS hand a letter out to
show it, and some DLQs delete what was handed out too often.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from unpoison.errors import StoreUnavailable
from unpoison.model.dead_letter import WholeLetter
from unpoison.model.events import fields
from unpoison.model.wording import counted
from unpoison.port.broker import WHOLE_BYTES, DeadLetters, NotesCollected, Progress, ReadAsAWhole, one_look
from unpoison.store.letters.claims import claimant
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.values import Ingested, Turn
from unpoison.store.port import CannotKeep, TurnLost

log = logging.getLogger("unpoison")

BATCH = 1_000
"""Letters that are stored before they are taken from the DLQ."""
TURN = 1.0
"""Seconds after its last batch for which a collector keeps others from the same DLQ: so soon another one takes over from one that
was killed. One that was only slow finds out when it stores, and does not store what may be gone."""
LOOK_LETTERS, LOOK_SECONDS = 20_000, 30.0
"""A DLQ that is read as a whole is let go after so much: other operators have their turn, and what was read is forgotten."""


class Collected(NamedTuple):
    """What became of the letters of a DLQ. `known` ones were in the store already, `duplicates` of the new ones are marked as
    what may be the same; `left` ones stay in the DLQ, since the store cannot keep them."""

    new: int = 0
    known: int = 0
    duplicates: int = 0
    left: int = 0

    def __add__(self, other: object) -> "Collected":
        if not isinstance(other, Collected):
            return NotImplemented
        return Collected(*(one + more for one, more in zip(self, other, strict=True)))

    @property
    def moved(self) -> int:
        return self.new + self.known


class Collector:
    """Moves the letters of one DLQ, by one thread. `place` is its name, if it is not the usual one of the source."""

    def __init__(
        self,
        letters: DeadLetters,
        store: LetterStore,
        source: str,
        place: str = "",
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._letters, self._store, self._monotonic = letters, store, monotonic
        self._source, self._place, self._turn = source, place, Turn(source, place, claimant())
        self._left: set[str] = set()
        """Ids of letters that the store cannot keep: each is told once."""

    def collect(self, progress: Progress | None = None, wanted: Callable[[], bool] = lambda: True) -> Collected:
        """Move what waits, until nothing does or it is not `wanted` any more. Nothing if another collector is at it.

        Raises StoreUnavailable or BrokerUnavailable: what was not moved by then is where it was.
        """
        try:
            return self._collect(progress, wanted)._replace(left=len(self._left))
        finally:
            with suppress(StoreUnavailable):  # it ends by itself
                self._store.end_collecting(self._turn)

    def _collect(self, progress: Progress | None, wanted: Callable[[], bool]) -> Collected:
        total = Collected()
        while (waiting := self._letters.count()) > len(self._left) and wanted() and self._has_turn():
            before = total.moved
            try:
                for moved in self._look(wanted):
                    total += moved
                    if progress:
                        progress(total.moved, max(total.moved, before + waiting))
            except TurnLost:
                continue  # what it has read is in the DLQ, or in the store
            if total.moved == before:
                break
        return total

    def _has_turn(self) -> bool:
        return self._store.may_collect(self._turn, TURN)

    def _look(self, wanted: Callable[[], bool]) -> Iterator[Collected]:
        """What becomes of the letters of one reading, page by page."""
        began, after, read = self._monotonic(), "", 0
        is_whole = isinstance(self._letters, ReadAsAWhole)
        with one_look(self._letters):
            while page := self._letters.whole(after=after, limit=BATCH, most_bytes=WHOLE_BYTES):
                yield self._move(page)
                after, read = page[-1].letter.id, read + len(page)
                is_long = is_whole and (read >= LOOK_LETTERS or self._monotonic() - began >= LOOK_SECONDS)
                if is_long or not wanted() or not self._has_turn():
                    return

    def _move(self, page: Sequence[WholeLetter]) -> Collected:
        kept, stored = self._stored([each for each in page if each.letter.id not in self._left])
        if stored:
            self._take([each.letter.id for each in stored])
        return Collected(*kept)

    def _take(self, letter_ids: Sequence[str]) -> None:
        """Take what is in the store from the DLQ."""
        if isinstance(self._letters, NotesCollected):
            self._letters.collected(letter_ids)
        else:
            self._letters.remove(letter_ids)

    def _stored(self, letters: Sequence[WholeLetter]) -> tuple[Ingested, Sequence[WholeLetter]]:
        """What became of these, and which of them the store has. One that it cannot keep stops no other."""
        if not letters:
            return Ingested(), ()
        try:
            return self._store.put([self._named(_unredacted(each)) for each in letters], self._turn), letters
        except CannotKeep as error:
            if len(letters) == 1:
                self._leave(letters[0], error)
                return Ingested(), ()
        middle = len(letters) // 2
        first, second = self._stored(letters[:middle]), self._stored(letters[middle:])
        both = Ingested(*(one + other for one, other in zip(first[0], second[0], strict=True)))
        return both, [*first[1], *second[1]]

    def _named(self, whole: WholeLetter) -> WholeLetter:
        return msgspec.structs.replace(whole, place=self._place) if self._place else whole

    def _leave(self, whole: WholeLetter, error: StoreUnavailable) -> None:
        self._left.add(whole.letter.id)
        log.error(
            "Source %r: dead letter %s (%s) stays in the DLQ: the store cannot keep it. %s",
            self._source,
            whole.letter.id,
            counted(len(whole.letter.body), "byte"),
            error,
            extra=fields("not-collected", source=self._source, letter_id=whole.letter.id),
        )


def _unredacted(whole: WholeLetter) -> WholeLetter:
    """In a DLQ no letter is redacted, whatever another program has written there."""
    if whole.letter.redaction is None:
        return whole
    return msgspec.structs.replace(whole, letter=msgspec.structs.replace(whole.letter, redaction=None), sealed=None)
