"""Looks at dead letters, replays, discards and purges them.

`DLQManager` works on the broker's own DLQ. A crash cannot cut any step in half: a letter is still there, or was sent, or
was removed. A replay works on the set frozen at its start, so it ends even if all of it fails again. With a filter that set is
chosen first, by one reading of the DLQ, and then worked on by its ids: what changes meanwhile does not join it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, Self, TypeAlias, runtime_checkable

from unpoison.errors import BulkStopped, CapabilityError, ConfigError, LetterNotFound, UnpoisonError
from unpoison.filters.filter import Filter
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.letter_group import LetterGroup, grouped
from unpoison.model.verdict import STATES
from unpoison.port.broker import DeadLetters, ListsIds, Progress, PurgesHistory, ReadAsAWhole, SizesPages, close, one_look
from unpoison.port.broker_url import masked_text

PAGE = 1_000
"""How many letters are sent or removed at once, unless the adapter says another number."""
LOOK = 250
"""How many are read at once, bodies included."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay did. `gone` letters were replayed, discarded or purged by others in the meantime."""

    replayed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.replayed)

    def __bool__(self) -> bool:
        return bool(self.replayed)


@dataclass(frozen=True, slots=True)
class DiscardResult:
    """What a bulk discard did. `gone` letters were replayed, discarded or purged by others in the meantime."""

    discarded: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.discarded)

    def __bool__(self) -> bool:
        return bool(self.discarded)


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """How many waiting letters were deleted, and how many that had been dealt with before."""

    purged: int = 0
    history: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters that matched a filter when it was made, by their state. What is done to it is done to no others."""

    where: Filter
    by_state: Mapping[str, tuple[str, ...]]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(id_ for ids in self.by_state.values() for id_ in ids)

    @property
    def count(self) -> int:
        return sum(map(len, self.by_state.values()))

    def __bool__(self) -> bool:
        return bool(self.count)


Where: TypeAlias = Filter | Selection | str
"""Which letters are meant: those that match now, or those that matched before."""


@runtime_checkable
class FindsLetters(Protocol):
    """Dead letters in a database, which finds them without reading all. `state` None is any."""

    def matching(
        self, where: Filter, state: str | None, limit: int | None, progress: Progress | None = None
    ) -> Iterator[DeadLetter]:
        """Those that match, oldest first."""

    def chosen(self, where: Filter, state: str | None, progress: Progress | None = None) -> Mapping[str, Sequence[str]]:
        """The ids of those that match, by their state."""

    def groups(self, where: Filter | None, progress: Progress | None = None) -> Sequence[LetterGroup]:
        """The groups of those that wait and match."""


@runtime_checkable
class RevealsOriginals(Protocol):
    """Dead letters that may be redacted."""

    def reveal(self, letter_id: str, reason: str) -> DeadLetter:
        """The letter as it was. The audit log has who saw it, and why, before this returns."""


@dataclass(slots=True)
class _Tally:
    """How far work on a whole DLQ is."""

    total: int
    progress: Progress | None
    handled: int = 0
    done: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, handled: int, done: int) -> None:
        self.handled += handled
        self.done[what] = self.done.get(what, 0) + done
        if self.progress:
            self.progress(self.handled, self.total)


class DLQManager:
    """The dead letters of one source, or of a DLQ with letters of many. `app.dlq("orders")` makes it."""

    def __init__(self, letters: DeadLetters, source: str = "", clock: Callable[[], float] = time.time, *, dlq: str = "") -> None:
        if not hasattr(letters, "browse"):
            shown = masked_text(repr(letters))
            raise ConfigError(
                f"DLQManager cannot be made from {shown}. Ask the app for it: App('sqlite:///shop.db') has app.dlq('orders')."
            )
        self._letters, self.source, self._clock, self._named = letters, source, clock, source or dlq
        self.page = letters.page if isinstance(letters, SizesPages) else PAGE
        """How many letters of a whole DLQ are sent or removed at once."""
        self.is_closed = False

    def close(self) -> None:
        """Close its connection. It also works as a context manager: with app.dlq("orders") as dlq: …"""
        self.is_closed = True
        close(self._letters)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count(self, where: Filter | str | None = None, progress: Progress | None = None) -> int:
        """How many letters wait, or match."""
        return self._letters.count() if where is None else self.select(where, progress=progress).count

    def peek(self, limit: int = 10) -> list[DeadLetter]:
        """The oldest letters. Looking changes nothing."""
        return list(self._letters.browse(limit=limit))

    def letters(
        self,
        state: str | None = "dead",
        limit: int | None = None,
        where: Filter | str | None = None,
        progress: Progress | None = None,
    ) -> Iterator[DeadLetter]:
        """Every letter there is now, or the oldest of them, page by page; with a filter those that match.

        A filter that names a state decides itself which states are meant, unless `state` is not "dead".
        """
        if where is None and limit is not None and limit <= PAGE:
            return iter(self._letters.browse(limit=limit, state=state))
        if where is not None and isinstance(self._letters, FindsLetters):
            meant = Filter.parse(where)
            return self._letters.matching(meant, _asked(meant, state), limit, progress)
        return islice(self._read(None if where is None else Filter.parse(where), state, progress), limit)

    def _read(self, where: Filter | None, state: str | None, progress: Progress | None) -> Iterator[DeadLetter]:
        """Those that there are now, or that match now."""
        states: Sequence[str] = STATES if state is None else (state,)
        if where is not None:
            states = self._possible(where, state)
            if not states:
                return
        now, asked, read = self._clock(), states[0] if len(states) == 1 else None, 0
        if isinstance(self._letters, ReadAsAWhole):
            progress = None  # `one_look` tells how far the reading is; what follows takes no time, and a count may be a reading
        until, after = self._letters.freeze(), ""
        total = sum(self._letters.count(each) for each in ([asked] if asked else STATES)) if progress else 0
        while page := self._letters.browse(after=after, until=until, limit=LOOK, state=asked):
            yield from (letter for letter in page if where is None or where.matches(letter, now))
            after, read = page[-1].id, read + len(page)
            if progress:
                progress(read, total)

    def _possible(self, where: Filter, state: str | None) -> Sequence[str]:
        """The states in which letters can match."""
        known = {"source": self.source} if self.source else {}
        possible = [each for each in STATES if where.can_match(state=each, **known)]
        named = "state" in where.fields and state == "dead"
        return possible if state is None or named else [each for each in possible if each == state]

    def select(self, where: Filter | str, state: str | None = "dead", progress: Progress | None = None) -> Selection:
        """The letters that match now, as a set that stays what it is: count it, then have it replayed, discarded or purged."""
        chosen, found = Filter.parse(where), dict[str, list[str]]()
        if isinstance(self._letters, FindsLetters):
            by_state = self._letters.chosen(chosen, _asked(chosen, state), progress)
            return Selection(chosen, {name: tuple(ids) for name, ids in by_state.items()})
        with one_look(self._letters, progress):
            for letter in self._read(chosen, state, progress):
                found.setdefault(letter.state, []).append(letter.id)
        return Selection(chosen, {state: tuple(ids) for state, ids in found.items()})

    def groups(self, where: Filter | str | None = None, progress: Progress | None = None) -> list[LetterGroup]:
        """The letters that wait, or those of them that match, by what failed: the largest group first."""
        meant = None if where is None else Filter.parse(where)
        if isinstance(self._letters, FindsLetters):
            return list(self._letters.groups(meant, progress))
        with one_look(self._letters, progress):
            return grouped(self.letters(where=meant, progress=progress))

    def get(self, id: str) -> DeadLetter:  # noqa: A002 - the word users write
        """One letter, by its own id or by its message's id where only one letter has it."""
        found = self._letters.browse(only=id, state=None)
        found = [letter for letter in found if letter.state == "dead"] or found
        if not found:
            raise LetterNotFound(id, self._named)
        if len(found) > 1:
            raise LetterNotFound(id, self._named, others=[letter.id for letter in found])
        return found[0]

    def reveal(self, id: str, *, reason: str) -> DeadLetter:  # noqa: A002 - the word users write
        """A letter as it was before it was redacted. The audit log has who saw it, and why, before this returns. Raises
        OriginalUnavailable if it is not kept, or cannot be decrypted with UNPOISON_KEY."""
        letter = self.get(id)
        if not isinstance(self._letters, RevealsOriginals):
            raise CapabilityError(
                f"The dead letters of {self.source!r} are in the DLQ of the broker, where nothing is redacted: get({id!r}) shows "
                "all."
            )
        return self._letters.reveal(letter.id, reason)

    def replay_one(self, id: str | None = None) -> ReplayResult:  # noqa: A002
        """Send one letter to its source again: this one, or the oldest. An empty DLQ gives an empty result."""
        with one_look(self._letters):
            if id is None:
                return self._replay_oldest()
            letter = self.get(id)
            if not self._letters.replay([letter.id]):
                raise LetterNotFound(id, self._named, self.get(letter.id).state)
            return ReplayResult((letter.id,))

    def _replay_oldest(self) -> ReplayResult:
        """Skips a letter that another operator is working on."""
        after = ""
        while oldest := self._letters.browse(after=after, limit=1):
            after = oldest[0].id
            if sent := self._letters.replay([after]):
                return ReplayResult(tuple(sent))
        return ReplayResult()

    def replay_all(self, progress: Progress | None = None, where: Where | None = None) -> ReplayResult:
        """Send every letter that waits now, or that matches. What fails again becomes a new letter and is no part of this."""
        return ReplayResult(*self._changed("replayed", self._letters.replay, progress, where))

    def discard(self, id: str) -> DeadLetter:  # noqa: A002
        """Mark one letter as discarded. It stays visible until the DLQ is purged."""
        with one_look(self._letters):
            letter = self.get(id)
            if not self._letters.remove([letter.id], keep_as="discarded"):
                raise LetterNotFound(id, self._named, self.get(letter.id).state)
            return letter

    def discard_all(self, progress: Progress | None = None, where: Where | None = None) -> DiscardResult:
        """Mark every letter that waits now, or that matches, as discarded."""

        def discard(ids: Sequence[str]) -> Sequence[str]:
            return self._letters.remove(ids, keep_as="discarded")

        return DiscardResult(*self._changed("discarded", discard, progress, where))

    def _changed(
        self, verb: str, change: Callable[[Sequence[str]], Sequence[str]], progress: Progress | None, where: Where | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The ids of waiting letters that were changed, and of those that somebody else changed first."""
        done: list[str] = []
        gone: list[str] = []
        with one_look(self._letters, progress):
            chosen = self._chosen(where, "dead", progress)
            with self._counted(verb, ("dead",), chosen, progress) as tally:
                for page in self._pages("dead", chosen):
                    changed = set(change(page))
                    done += [id_ for id_ in page if id_ in changed]
                    gone += [id_ for id_ in page if id_ not in changed]
                    tally.add("dead", len(page), len(changed))
        return tuple(done), tuple(gone)

    def purge(self, progress: Progress | None = None, where: Where | None = None, *, history: bool = False) -> PurgeResult:
        """Delete letters for good, whether they wait or were dealt with before: all that are there now, or those that match.

        With `history` only those that were dealt with: none that waits.
        """
        states: Sequence[str] = STATES[1:] if history else STATES
        with one_look(self._letters, progress):
            chosen = self._chosen(where, None, progress)
            with self._counted("purged", states, chosen, progress) as tally:
                if chosen is None and isinstance(self._letters, PurgesHistory):
                    states = () if history else STATES[:1]
                    tally.add("history", deleted := self._letters.purge_history(), deleted)
                for state in states:
                    for page in self._pages(state, chosen):
                        removed = len(self._letters.remove(page, state=state))
                        tally.add(state if state == "dead" else "history", len(page), removed)
        return PurgeResult(tally.done.get("dead", 0), tally.done.get("history", 0))

    def _chosen(self, where: Where | None, state: str | None, progress: Progress | None) -> Selection | None:
        """The letters that are meant; None if all are."""
        return where if where is None or isinstance(where, Selection) else self.select(where, state, progress)

    @contextmanager
    def _counted(self, verb: str, states: Sequence[str], chosen: Selection | None, progress: Progress | None) -> Iterator[_Tally]:
        """Count what is done inside. An error that stops it early says how far it came."""
        of_state = self._letters.count if chosen is None else lambda state: len(chosen.by_state.get(state, ()))
        tally = _Tally(sum(map(of_state, states)), progress)
        try:
            yield tally
        except UnpoisonError as error:
            if not tally.handled:
                raise
            raise BulkStopped(self._named, verb, sum(tally.done.values()), tally.total, self.page, error) from error

    def _pages(self, state: str, chosen: Selection | None) -> Iterator[Sequence[str]]:
        """The ids of the letters in this state now, or of the chosen ones, page by page."""
        if chosen is not None:
            ids = chosen.by_state.get(state, ())
            yield from (ids[start : start + self.page] for start in range(0, len(ids), self.page))
            return
        until, after = self._letters.freeze(), ""
        while page := self._ids(after, until, state):
            yield page
            after = page[-1]

    def _ids(self, after: str, until: str, state: str) -> Sequence[str]:
        if isinstance(self._letters, ListsIds):
            return self._letters.ids(after=after, until=until, limit=self.page, state=state)
        return [letter.id for letter in self._letters.browse(after=after, until=until, limit=self.page, state=state)]


def _asked(where: Filter, state: str | None) -> str | None:
    """The state that is meant: a filter that names states decides itself, unless another one than "dead" is asked for."""
    return None if state == "dead" and "state" in where.fields else state
