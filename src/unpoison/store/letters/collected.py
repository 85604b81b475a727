"""The dead letters of a source whose DLQ is collected: what waits there is moved into the store, and worked on in the store.

To everything that works on letters this is a DLQ like any other. It asks the DLQ of the broker only at the beginning of a look,
and to send letters back.
"""

import logging
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from unpoison.errors import LetterNotFound, OriginalUnavailable, PayloadError
from unpoison.filters.filter import Filter
from unpoison.filters.terms import And, Condition, Pattern, Term
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.events import fields
from unpoison.model.letter_group import LetterGroup, grouped
from unpoison.model.wording import counted
from unpoison.port.broker import WHOLE_BYTES, DeadLetters, Progress, Published, close
from unpoison.port.reading import first_within
from unpoison.store.letters.claims import claimant
from unpoison.store.letters.people import by_ids
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.scopes import Scope
from unpoison.store.letters.values import DELETED, STATE, Change, Order, Position, Selection, StoredGroup, StoredLetter

log = logging.getLogger("unpoison")

CLAIMED = 120.0
"""Seconds for which letters that are being sent back are kept from other operators. If one on another host is killed meanwhile,
they wait so long."""
SENT_AT_ONCE = 1_000
PAGE = 250
TREND = 86_400.0
"""Seconds for which the trend of a group is told."""
_DEAD = Condition("state", "=", Pattern(("dead",)))
_UP_TO = "\0"
"""Stands before a number, as the end of a frozen set: no letter has such an id."""


class Ready(NamedTuple):
    """A letter that is to be sent back, as it is stored and as it was."""

    stored: StoredLetter
    original: WholeLetter


class CollectedLetters:
    """The letters of one source, or of one DLQ: those in the store, and those that are still in the DLQ of the broker, which
    `collect` moves into the store. `by` is who works."""

    def __init__(
        self, native: DeadLetters, store: LetterStore, scope: Scope, by: str, collect: Callable[[Progress | None], object]
    ) -> None:
        self.broker = native.broker
        self._native, self.store, self.scope, self._by, self._move = native, store, scope, by, collect
        self._claimant = claimant()
        self._numbers: dict[str, int] = {}
        """Of letters that were shown, by their ids: pages go on behind them."""
        self._is_looking = self._has_warned = False
        self._chosen: tuple[str, Collection[str]] = "", ()
        """The last filter, and the ids that it chose: the audit log names it with what is done to these."""

    def close(self) -> None:
        try:
            self.store.close()
        finally:
            close(self._native)

    @contextmanager
    def one_look(self, progress: Progress | None = None) -> Iterator[None]:
        """What waits in the DLQ now is collected first. Nothing is kept from others."""
        self._collect(progress)
        was, self._is_looking = self._is_looking, True
        try:
            yield
        finally:
            self._is_looking = was

    def count(self, state: str = "dead") -> int:
        """Those in the DLQ wait too."""
        native = self._native.count() if state == "dead" and not self._is_looking else 0
        return native + self.scope.counts(self.store).get(state, 0)

    def freeze(self) -> str:
        self._collect()
        newest = self.store.page(order=Order.ARRIVAL, limit=1).letters
        return f"{_UP_TO}{newest[0].number if newest else 0}"

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        if not after:
            self._collect()
        found = self._only(only, state) if only is not None else self._page(after, until, limit, state)
        return self._named(found)

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """Send them back. Those that cannot be sent stay, and are told when the others are sent."""
        sent: list[str] = []
        refused: dict[str, str] = {}
        for first in range(0, len(letter_ids), SENT_AT_ONCE):
            sent += self._replay(letter_ids[first : first + SENT_AT_ONCE], refused)
        if refused:
            raise _not_sent(refused, len(sent))
        return sent

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        by_number = {number: id_ for id_ in letter_ids if (number := self._number(id_)) is not None}
        selection = Selection(self._about(letter_ids), array("q", sorted(by_number)))
        change = Change(DELETED, "purged", only=state) if keep_as is None else Change(STATE, keep_as, only=state)
        changed = set(self.store.change(selection, change, by=self._by).numbers)
        gone = {id_ for number, id_ in by_number.items() if number in changed}
        return [id_ for id_ in letter_ids if id_ in gone]

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        found = self._page(after, "", limit, "dead")
        self._named(found)
        some = found[: first_within((len(each.letter.body) for each in found), most_bytes)]
        return [self.store.original(each) for each in some]

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        return self._native.send_back(letters)

    def reveal(self, letter_id: str, reason: str) -> DeadLetter:
        """The letter as it was. The audit log has who saw it, and why, before this returns."""
        number = self._number(letter_id)
        stored = None if number is None else self.store.get(number)
        if stored is None:
            raise LetterNotFound(letter_id, self.scope.source or "")
        return self.store.reveal(stored, by=self._by, reason=reason).letter

    # Finding.

    def matching(
        self, where: Filter, state: str | None, limit: int | None, progress: Progress | None = None
    ) -> Iterator[DeadLetter]:
        """Oldest first: in the order in which they came into the store."""
        self._collect()
        position: Position | None = None
        meant, left, order = self._narrowed(where), limit, Order.ARRIVAL
        while left is None or left > 0:
            most = PAGE if left is None else min(PAGE, left)
            page = self.store.page(
                meant, state=state, order=order, is_descending=False, after=position, limit=most, progress=progress
            )
            found = [each for each in page.letters if self._is_ours(each)]
            yield from self._named(found)
            left = None if left is None else left - len(found)
            if (position := page.next) is None:
                return

    def chosen(self, where: Filter, state: str | None, progress: Progress | None = None) -> Mapping[str, Sequence[str]]:
        self._collect()
        selection = self.store.select(self._narrowed(where), state=state, progress=progress)
        found: dict[str, list[str]] = {}
        for number, letter_id, known in self.scope.named(self.store, selection.numbers):
            self._numbers[letter_id] = number
            found.setdefault(known, []).append(letter_id)
        self._chosen = self.store.told(where), {letter_id for ids in found.values() for letter_id in ids}
        return found

    def groups(self, where: Filter | None, progress: Progress | None = None) -> Sequence[LetterGroup]:
        self._collect()
        if self.scope.source is None:
            return grouped(self.matching(Filter(_DEAD) if where is None else where, "dead", None, progress))
        return self._groups_of(self.scope.source, where, progress)

    def _groups_of(self, source: str, where: Filter | None, progress: Progress | None) -> Sequence[LetterGroup]:
        """As the store counts them."""
        now = time.time()
        meant = self._ours if where is None else self._narrowed(where)
        found = self.store.groups(meant, state="dead", trend_since=now - TREND, progress=progress)
        samples = [group.sample for group in found if group.sample is not None]
        names = {number: letter_id for number, letter_id, _ in self.scope.named(self.store, samples)}
        return [_shown(source, group, names, now) for group in found if source in group.counts]

    # Looking.

    def _narrowed(self, where: Filter) -> Filter:
        return Filter(And((self.scope.term(self.store), where.term)))

    @property
    def _ours(self) -> Filter:
        return Filter(self.scope.term(self.store))

    def _collect(self, progress: Progress | None = None) -> None:
        if self._is_looking:
            return
        if why := self.store.redaction.why_not():
            if not self._has_warned:
                text = "Source %r: dead letters in the DLQ stay there, and only those in the store are seen: %s"
                source = self.scope.source or ""
                log.warning(text, source, why, extra=fields("not-collected", source=source))
            self._has_warned = True
            return
        self._move(progress)

    def _named(self, letters: Sequence[StoredLetter]) -> list[DeadLetter]:
        self._numbers.update((each.letter.id, each.number) for each in letters)
        return [each.letter for each in letters]

    def _number(self, letter_id: str) -> int | None:
        """The number of this letter; None if there is none."""
        if letter_id in self._numbers:
            return self._numbers[letter_id]
        return next((each.number for each in self.scope.find(self.store, letter_id)), None)

    def _page(self, after: str, until: str, limit: int, state: str | None) -> Sequence[StoredLetter]:
        """Letters in the order in which they came into the store."""
        last = int(until.removeprefix(_UP_TO)) if until.startswith(_UP_TO) else self._number(until) if until else None
        position = Position(0.0, self._number(after) or 0) if after else None
        found: list[StoredLetter] = []
        while len(found) < limit:
            page = self.store.page(
                self._ours, state=state, order=Order.ARRIVAL, is_descending=False, after=position, limit=limit - len(found)
            )
            found += [each for each in page.letters if self._is_ours(each) and (last is None or each.number <= last)]
            if (position := page.next) is None or (last is not None and position.number >= last):
                break
        return found

    def _only(self, name: str, state: str | None) -> Sequence[StoredLetter]:
        """The letter with this id, else those whose message has it."""
        found = self.scope.find(self.store, name)
        if not found:
            of_id: Term = And((self._ours.term, Condition("id", "=", Pattern((name,)))))
            found = self.store.page(Filter(of_id), order=Order.ARRIVAL, is_descending=False, limit=SENT_AT_ONCE).letters
        return [each for each in found if self._is_ours(each) and state in (None, each.letter.state)]

    def _is_ours(self, stored: StoredLetter) -> bool:
        return self.scope.has(stored)

    def _about(self, letter_ids: Sequence[str]) -> str:
        """Which letters these are, for the audit log."""
        where, chosen = self._chosen
        if where and all(letter_id in chosen for letter_id in letter_ids):
            return where
        return by_ids(letter_ids)

    # Sending.

    def _replay(self, letter_ids: Sequence[str], refused: dict[str, str]) -> Sequence[str]:
        numbers = [number for id_ in letter_ids if (number := self._number(id_)) is not None]
        claimed = self.store.claim(numbers, by=self._claimant, seconds=CLAIMED)
        try:
            return [id_ for part in self._portions(claimed, refused) for id_ in self._send(part, refused)]
        finally:
            self.store.release(claimed, by=self._claimant)

    def _portions(self, numbers: Sequence[int], refused: dict[str, str]) -> Iterator[list[Ready]]:
        """The letters of these numbers as they were, as many at a time as fit into memory. One whose original is not kept is
        refused, and never sent without what was redacted."""
        part: list[Ready] = []
        size = 0
        for number in numbers:
            if (each := self.store.get(number)) is None:
                continue
            try:
                original = self.store.original(each)
            except OriginalUnavailable as error:
                refused[each.letter.id] = str(error)
                continue
            part.append(Ready(each, original))
            size += len(original.letter.body)
            if size > WHOLE_BYTES:
                yield part
                part, size = [], 0
        if part:
            yield part

    def _send(self, letters: Sequence[Ready], refused: dict[str, str]) -> Sequence[str]:
        """Send these and note it. Of one for which no answer came it is not known: it stays, and may come twice."""
        outcome = self._native.send_back([_as_it_waits(each.original) for each in letters])
        why = {number: each.reason for number, each in outcome.refused.items()} | dict(outcome.unknown)
        refused |= {letters[number].stored.letter.id: reason for number, reason in why.items()}
        sent = [each.stored for number, each in enumerate(letters) if number not in why]
        ids = [each.letter.id for each in sent]
        selection = Selection(self._about(ids), array("q", [each.number for each in sent]))
        self.store.change(selection, Change(STATE, "replayed"), by=self._by, claimant=self._claimant)
        return ids


def _as_it_waits(whole: WholeLetter) -> WholeLetter:
    return msgspec.structs.replace(whole, letter=msgspec.structs.replace(whole.letter, state="dead"))


def _not_sent(refused: dict[str, str], sent: int) -> PayloadError:
    id_, reason = next(iter(refused.items()))
    return PayloadError(
        f"{counted(len(refused), 'dead letter')} could not be sent and waits as before; {sent:,} were sent. The first is "
        f"{id_!r}: {reason.rstrip('.')}. Repair that and replay again, or discard it: unpoison dlq discard {id_}"
    )


def _shown(source: str, group: StoredGroup, names: Mapping[int, str], now: float) -> LetterGroup:
    count = sum(group.counts[source].values())
    return LetterGroup(
        fingerprint=group.fingerprint,
        count=count,
        sources={source: count},
        first_failed_at=group.first_seen,
        last_failed_at=group.last_seen,
        example=names.get(group.sample or 0, ""),
        classification=group.classification,
        error_type=group.error_type,
        error=group.error,
        state=group.work.state(now),
        owner=group.work.owner,
        note=group.work.note,
        trend=dict(group.trend),
    )
