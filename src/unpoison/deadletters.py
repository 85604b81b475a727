"""Looks at dead letters, replays, discards and purges them.

`DLQManager` works on the broker's own DLQ. A crash cannot cut any step in half: a letter is still there, or was sent, or
was removed. A replay works on the set frozen at its start, so it ends even if all of it fails again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from unpoison.errors import BulkStopped, ConfigError, LetterNotFound, UnpoisonError
from unpoison.model.dead_letter import DeadLetter
from unpoison.port.broker import DeadLetters, ListsIds, Progress, PurgesHistory, SizesPages, one_look
from unpoison.port.broker_url import masked_text

PAGE = 1_000
"""How many letters are sent or removed at once, unless the adapter says another number."""
LOOK = 250
"""How many are read at once, bodies included."""
STATES = ("dead", "replayed", "discarded")


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
class PurgeResult:
    """How many waiting letters were deleted, and how many that had been dealt with before."""

    purged: int = 0
    history: int = 0


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
    """The dead letters of one source. `app.dlq("orders")` makes it."""

    def __init__(self, letters: DeadLetters, source: str = "") -> None:
        if not hasattr(letters, "browse"):
            shown = masked_text(repr(letters))
            raise ConfigError(
                f"DLQManager cannot be made from {shown}. Ask the app for it: App('sqlite:///shop.db') has app.dlq('orders')."
            )
        self._letters, self.source = letters, source
        self.page = letters.page if isinstance(letters, SizesPages) else PAGE
        """How many letters of a whole DLQ are sent or removed at once."""
        self.is_closed = False

    def close(self) -> None:
        """Close its connection. It also works as a context manager: with app.dlq("orders") as dlq: …"""
        self.is_closed = True
        self._letters.broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count(self) -> int:
        """How many letters wait."""
        return self._letters.count()

    def peek(self, limit: int = 10) -> list[DeadLetter]:
        """The oldest letters. Looking changes nothing."""
        return list(self._letters.browse(limit=limit))

    def letters(self, state: str | None = "dead", limit: int | None = None) -> Iterator[DeadLetter]:
        """Every letter there is now, or the oldest of them, page by page."""
        if limit is not None and limit <= PAGE:
            yield from self._letters.browse(limit=limit, state=state)
            return
        until, after = self._letters.freeze(), ""
        while page := self._letters.browse(after=after, until=until, limit=LOOK, state=state):
            yield from page
            after = page[-1].id

    def get(self, id: str) -> DeadLetter:  # noqa: A002 - the word users write
        """One letter, by its own id or by its message's id where only one letter has it."""
        found = self._letters.browse(only=id, state=None)
        found = [letter for letter in found if letter.state == "dead"] or found
        if not found:
            raise LetterNotFound(id, self.source)
        if len(found) > 1:
            raise LetterNotFound(id, self.source, others=[letter.id for letter in found])
        return found[0]

    def replay_one(self, id: str | None = None) -> ReplayResult:  # noqa: A002
        """Send one letter to its source again: this one, or the oldest. An empty DLQ gives an empty result."""
        with one_look(self._letters):
            if id is None:
                return self._replay_oldest()
            letter = self.get(id)
            if not self._letters.replay([letter.id]):
                raise LetterNotFound(id, self.source, self.get(letter.id).state)
            return ReplayResult((letter.id,))

    def _replay_oldest(self) -> ReplayResult:
        """Skips a letter that another operator is working on."""
        after = ""
        while oldest := self._letters.browse(after=after, limit=1):
            after = oldest[0].id
            if sent := self._letters.replay([after]):
                return ReplayResult(tuple(sent))
        return ReplayResult()

    def replay_all(self, progress: Progress | None = None) -> ReplayResult:
        """Send every letter that waits now. What fails again becomes a new letter and is not part of this replay."""
        sent: list[str] = []
        gone: list[str] = []
        with one_look(self._letters, progress), self._counted("replayed", ("dead",), progress) as tally:
            for page in self._pages("dead"):
                replayed = set(self._letters.replay(page))
                sent += [id_ for id_ in page if id_ in replayed]
                gone += [id_ for id_ in page if id_ not in replayed]
                tally.add("dead", len(page), len(replayed))
        return ReplayResult(tuple(sent), tuple(gone))

    def discard(self, id: str) -> DeadLetter:  # noqa: A002
        """Mark one letter as discarded. It stays visible until the DLQ is purged."""
        with one_look(self._letters):
            letter = self.get(id)
            if not self._letters.remove([letter.id], keep_as="discarded"):
                raise LetterNotFound(id, self.source, self.get(letter.id).state)
            return letter

    def purge(self, progress: Progress | None = None) -> PurgeResult:
        """Delete every letter that is there now, for good: those that wait, and those dealt with before."""
        with one_look(self._letters, progress), self._counted("purged", STATES, progress) as tally:
            in_pages: Sequence[str] = STATES
            if isinstance(self._letters, PurgesHistory):
                in_pages = STATES[:1]
                tally.add("history", deleted := self._letters.purge_history(), deleted)
            for state in in_pages:
                for page in self._pages(state):
                    tally.add(state if state == "dead" else "history", len(page), len(self._letters.remove(page, state=state)))
        return PurgeResult(tally.done.get("dead", 0), tally.done.get("history", 0))

    @contextmanager
    def _counted(self, verb: str, states: Sequence[str], progress: Progress | None) -> Iterator[_Tally]:
        """Count what is done inside. An error that stops it early says how far it came."""
        tally = _Tally(sum(self._letters.count(state) for state in states), progress)
        try:
            yield tally
        except UnpoisonError as error:
            if not tally.handled:
                raise
            raise BulkStopped(self.source, verb, sum(tally.done.values()), tally.total, self.page, error) from error

    def _pages(self, state: str) -> Iterator[Sequence[str]]:
        """The ids of the letters in this state now, page by page."""
        until, after = self._letters.freeze(), ""
        while page := self._ids(after, until, state):
            yield page
            after = page[-1]

    def _ids(self, after: str, until: str, state: str) -> Sequence[str]:
        if isinstance(self._letters, ListsIds):
            return self._letters.ids(after=after, until=until, limit=self.page, state=state)
        return [letter.id for letter in self._letters.browse(after=after, until=until, limit=self.page, state=state)]
