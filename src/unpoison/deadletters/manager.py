"""What can a person do with dead letters?

`DLQManager` works on the broker's own DLQ. Every step is one that a crash cannot cut in half: a letter is either still
there, or was sent, or was removed. A replay works on the set frozen at its start, so it ends even if all of it fails again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from unpoison.deadletters.record import DeadLetter
from unpoison.errors import LetterNotFound
from unpoison.ports import DeadLetters

PAGE = 100

Progress = Callable[[int, int], None]
"""Called with (handled so far, size of the frozen set) during long work."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay did. `gone` letters were replayed, discarded or purged by somebody else in the meantime."""

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


class DLQManager:
    """The dead letters of one source."""

    def __init__(self, letters: DeadLetters, source: str) -> None:
        self._letters, self.source = letters, source
        self.is_closed = False

    def close(self) -> None:
        """Give its connection up. It also works as a context manager: with app.dlq("orders") as dlq: …"""
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

    def letters(self, state: str | None = "dead") -> Iterator[DeadLetter]:
        """Every letter there is now, page by page, oldest first."""
        until, after = self._letters.freeze(), ""
        while page := self._letters.browse(after=after, until=until, limit=PAGE, state=state):
            yield from page
            after = page[-1].id

    def get(self, id: str) -> DeadLetter:  # noqa: A002 - the word users write
        """One letter, by its own id or by its message's id where only one letter has it."""
        if exact := self._letters.browse(only=id, state=None):
            return exact[0]
        found = [letter for letter in self.letters(state=None) if letter.message.id == id]
        found = [letter for letter in found if letter.state == "dead"] or found
        if not found:
            raise LetterNotFound(id, self.source)
        if len(found) > 1:
            raise LetterNotFound(id, self.source, others=[letter.id for letter in found])
        return found[0]

    def replay_one(self, id: str | None = None) -> ReplayResult:  # noqa: A002
        """Send one letter to its source again: this one, or the oldest. An empty DLQ gives an empty result."""
        if id is None:
            while oldest := self._letters.browse(limit=1):
                if sent := self._letters.replay([oldest[0].id]):
                    return ReplayResult(tuple(sent))
            return ReplayResult()
        letter = self.get(id)
        if not self._letters.replay([letter.id]):
            raise LetterNotFound(id, self.source, self.get(letter.id).state)
        return ReplayResult((letter.id,))

    def replay_all(self, progress: Progress | None = None) -> ReplayResult:
        """Send every letter that waits now. What fails again becomes a new letter and is not part of this replay."""
        sent: list[str] = []
        gone: list[str] = []
        for page, total in self._pages("dead"):
            replayed = set(self._letters.replay(page))
            sent += [id_ for id_ in page if id_ in replayed]
            gone += [id_ for id_ in page if id_ not in replayed]
            if progress:
                progress(len(sent) + len(gone), total)
        return ReplayResult(tuple(sent), tuple(gone))

    def discard(self, id: str) -> DeadLetter:  # noqa: A002
        """Give one letter up for good. It stays visible as "discarded" until the DLQ is purged."""
        letter = self.get(id)
        if not self._letters.remove([letter.id], keep_as="discarded"):
            raise LetterNotFound(id, self.source, self.get(letter.id).state)
        return letter

    def purge(self, progress: Progress | None = None) -> PurgeResult:
        """Delete every letter that is there now, for good: those that wait, and those dealt with before."""
        counts = {}
        for state in ("dead", "replayed", "discarded"):
            counts[state] = 0
            for page, total in self._pages(state):
                counts[state] += len(self._letters.remove(page, state=state))
                if progress and state == "dead":
                    progress(counts[state], total)
        return PurgeResult(counts["dead"], counts["replayed"] + counts["discarded"])

    def _pages(self, state: str) -> Iterator[tuple[list[str], int]]:
        """The ids of the letters in this state now, page by page, with how many there are."""
        until, after, total = self._letters.freeze(), "", self._letters.count(state)
        while page := self._letters.browse(after=after, until=until, limit=PAGE, state=state):
            after = page[-1].id
            yield [letter.id for letter in page], total
