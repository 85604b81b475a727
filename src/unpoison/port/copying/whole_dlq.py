"""Work on a DLQ that can only be read as a whole.

Some brokers show a message only by handing it out: to look at letters means to take them all, under a lock, and to put them back.
A *reading* does that, as its broker can. Here is what is the same for all of them: one reading serves everything that is asked
during one look, the bytes of the letters wait in a temporary file, and only a line for each letter is kept in memory. The pages
that belong to one `freeze` come from one reading too.
"""

import heapq
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any, Protocol

import msgspec

from unpoison.errors import BrokerUnavailable
from unpoison.model.dead_letter import DeadLetter
from unpoison.port.broker import Broker, Progress

DEAD, GONE = "dead", ""
IN_MEMORY = 32 * 1024 * 1024
"""Bytes of letters that are kept in memory; more go to a temporary file."""


class Entry(msgspec.Struct, gc=False):
    """One letter that was taken: what it is found by, and where its bytes are."""

    id: str
    message_id: str
    state: str
    place: str
    """The queue that it was taken from."""
    handle: Any
    """By what its broker lets go of it."""
    identity: object = None
    """Equal for two copies of one letter, of which a crash left both. None where equal ones cannot be told apart."""
    at: int = 0
    size: int = 0


Keep = Callable[[Entry, bytes], None]
"""Is given each letter that is taken. Called by one thread at a time."""


class Reading(Protocol):
    """A DLQ under its lock. What was taken and not let go is put back when it ends."""

    total: int
    """How many letters wait, as the server counts them."""
    in_order: bool
    """Whether letters are taken in the order they came, each of them once. Then a second copy is a second message, which a crash
    left. A server that does not promise it may hand out one letter twice."""
    history: str
    """The place of letters that were dealt with."""

    def take_past(self, keep: Keep) -> None:
        """Take all that is known about letters that were dealt with."""

    def take(self, keep: Keep, most: int | None, progress: Progress | None) -> bool:
        """Take letters that wait until so many are taken; None is all. True if there are no more."""

    def letter(self, entry: Entry, data: bytes) -> DeadLetter:
        """Read one of them."""

    def store(self, chosen: Sequence[Entry], data: Callable[[Entry], bytes], state: str) -> Iterator[Sequence[Entry]]:
        """Have each sent again, or noted as discarded. Yields those that are stored, as soon as that is certain, and raises if
        others are not."""

    def let_go(self, entries: Sequence[Entry], *, stored: bool) -> None:
        """Delete these; `stored` ones are kept elsewhere, so that one of them that stays for now does no harm."""


class Index:
    """What one reading has found so far. It may be more than fits into memory: the bytes of the letters wait in a temporary file,
    and in memory is a line for each, enough to find it, to tell copies of it apart and to let it go."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - it lives as long as pages are asked for
        self.close = weakref.finalize(self, self._file.close)
        self._end = 0
        self._was_read = False
        self._new: list[Entry] = []
        self.taken = 0
        self.waiting: dict[str, Entry] = {}
        self.past: list[Entry] = []
        self.dealt_with: dict[str, Entry] = {}
        self.copies: dict[str, list[Entry]] = {}
        """Letters that were handed out more than once, by id: let go with the first, since they may be the same message."""
        self._first: dict[object, str] = {}
        self._equal: Counter[str] = Counter()
        self._order: list[Entry] | None = None
        self._positions: dict[str, int] = {}

    def keep(self, entry: Entry, data: bytes) -> None:
        entry.at, entry.size = self._end, len(data)
        try:
            if self._was_read:
                self._file.seek(self._end)
                self._was_read = False
            self._file.write(data)
        except OSError as error:
            raise BrokerUnavailable(
                f"Dead letters wait in a temporary file while they are read, and {tempfile.gettempdir()!r} took only "
                f"{self._end:,} bytes of them: {error}. All letters were put back. Make room there, or name a larger folder in "
                f"the variable TMPDIR."
            ) from None
        self._end += len(data)
        self._new.append(entry)

    def add_past(self) -> None:
        """What was taken since tells of letters that were dealt with. The history has the last word."""
        new, self._new = self._new, []
        self.dealt_with.update((entry.id, entry) for entry in new)
        self.past += [entry for entry in new if entry.place == self._reading.history]

    def add_waiting(self) -> list[Entry]:
        """What was taken since are letters that wait. Returns what a crash left behind and nobody needs: letters that were dealt
        with, and further copies of letters that wait."""
        new, self._new = self._new, []
        self.taken += len(new)
        self._order = None
        if not self._reading.in_order:
            new.sort(key=by_id)
        left: list[Entry] = []
        for entry in new:
            entry.id = self._named(entry)
            if entry.id in self.dealt_with:
                left.append(entry)
            elif entry.id in self.waiting:
                (left if self._reading.in_order else self.copies.setdefault(entry.id, [])).append(entry)
            else:
                self.waiting[entry.id] = entry
        return left

    def _named(self, entry: Entry) -> str:
        """Copies of one letter have the id of the first. Letters that cannot be told apart get different ones, and none that was
        dealt with: the one that is left is then not taken for a copy of the other, and lost."""
        if entry.identity is not None:
            return self._first.setdefault(entry.identity, entry.id)
        while True:
            self._equal[entry.id] += 1
            times = self._equal[entry.id]
            name = entry.id if times == 1 else f"{entry.id}-{times}"
            if name not in self.dealt_with:
                return name

    def entries(self, state: str | None, after: str = "") -> Iterator[Entry]:
        """In the order the letters came, behind this one."""
        if self._order is None:
            past = sorted(self.dealt_with.values(), key=by_id)
            self._order = list(heapq.merge(past, self.waiting.values(), key=by_id))
            self._positions = {entry.id: number for number, entry in enumerate(self._order)}
        start = self._positions[after] + 1 if after and after in self._positions else 0
        for entry in islice(self._order, start, None):
            if entry.state != GONE and state in (None, entry.state):
                yield entry

    def data(self, entry: Entry) -> bytes:
        self._file.seek(entry.at)
        self._was_read = True
        data: bytes = self._file.read(entry.size)
        return data

    def letter(self, entry: Entry) -> DeadLetter:
        return msgspec.structs.replace(self._reading.letter(entry, self.data(entry)), id=entry.id, state=entry.state)

    def find(self, name: str, state: str | None) -> list[Entry]:
        """The letter with this id, else those whose message has it."""
        entry = self.waiting.get(name) or self.dealt_with.get(name)
        if entry is not None and entry.state != GONE and state in (None, entry.state):
            return [entry]
        return [each for each in self.entries(state) if each.message_id == name]

    def changed(self, letter_ids: Sequence[str], state: str) -> None:
        """This is what became of these since."""
        for name in letter_ids:
            entry = self.waiting.get(name) or self.dealt_with.get(name)
            if entry is not None:
                entry.state = state


def by_id(entry: Entry) -> str:
    """What letters are sorted by: ids grow with time."""
    return entry.id


AT_ONCE, MOST_BYTES = 5_000, 32 * 1024 * 1024
"""Letters that are moved before their originals are let go: so many, and no more bytes than that, since they are in memory."""


class Look:
    """One reading, as far as it was needed."""

    def __init__(self, reading: Reading, progress: Progress | None) -> None:
        self.reading, self._progress = reading, progress
        self.index = Index(reading)
        self._is_begun = self._is_whole = False

    def past(self) -> Index:
        """Know what was dealt with."""
        if not self._is_begun:
            self._is_begun = True
            self.reading.take_past(self.index.keep)
            self.index.add_past()
        return self.index

    def head(self, limit: int) -> Index:
        """Know the first letters that wait, so many if there are."""
        index = self.past()
        while not self._is_whole and len(index.waiting) < limit:
            self._take(index.taken + limit - len(index.waiting), None)
        return index

    def whole(self) -> Index:
        """Know all letters."""
        index = self.past()
        if not self._is_whole:
            self._take(None, self._progress)
        return index

    def knowing(self, letter_ids: Iterable[str]) -> "Look":
        """Know these, if they wait. What is known already is not looked for."""
        if not all(name in self.index.waiting for name in letter_ids):
            self.whole()
        return self

    def _take(self, most: int | None, progress: Progress | None) -> None:
        self._is_whole = self.reading.take(self.index.keep, most, progress)
        if left := self.index.add_waiting():
            self.reading.let_go(left, stored=True)
            self.reading.total -= len(left)

    def count(self, state: str) -> int:
        if state == DEAD and not self._is_whole:
            return max(0, self.reading.total)
        return sum(1 for _ in self.past().entries(state))

    def deal(self, letter_ids: Iterable[str], state: str) -> list[str]:
        """Take these from the DLQ once what is to be kept of them elsewhere is stored. Returns those that were."""
        done: list[str] = []
        for stored in self.reading.store(self._waiting(letter_ids), self.index.data, state):
            self._let_go(stored, stored=True)
            for entry in stored:
                entry.state = state
            done += [entry.id for entry in stored]
        return done

    def delete(self, letter_ids: Iterable[str]) -> list[str]:
        """Delete these of those that wait."""
        chosen = self._waiting(letter_ids)
        self._let_go(chosen, stored=False)
        for entry in chosen:
            entry.state = GONE
        return [entry.id for entry in chosen]

    def forget(self, letter_ids: Iterable[str], state: str) -> list[str]:
        """Delete what the history tells of these, if it is this."""
        index, wanted = self.past(), set(letter_ids)
        chosen = [entry for entry in index.past if entry.id in wanted and entry.state == state]
        self.reading.let_go(chosen, stored=False)
        deleted = set(map(id, chosen))
        index.past = [entry for entry in index.past if id(entry) not in deleted]
        gone = {entry.id for entry in chosen if index.dealt_with[entry.id].place == self.reading.history}
        for name in gone:
            index.dealt_with[name].state = GONE
        return list(gone)

    def _waiting(self, letter_ids: Iterable[str]) -> list[Entry]:
        waiting = self.index.waiting
        found = [waiting[name] for name in dict.fromkeys(letter_ids) if name in waiting]
        return [entry for entry in found if entry.state == DEAD]

    def _let_go(self, entries: Sequence[Entry], *, stored: bool) -> None:
        copies = self.index.copies
        more = [each for entry in entries for each in copies.get(entry.id, ())] if copies else []
        self.reading.let_go([*entries, *more], stored=stored)
        self.reading.total -= len(entries) + len(more)


def portions(entries: Iterable[Entry], most: int = AT_ONCE, most_bytes: int = MOST_BYTES) -> Iterator[list[Entry]]:
    """So many at a time, and no more bytes than that, but at least one."""
    portion: list[Entry] = []
    size = 0
    for entry in entries:
        if portion and (len(portion) == most or size + entry.size > most_bytes):
            yield portion
            portion, size = [], 0
        portion.append(entry)
        size += entry.size
    if portion:
        yield portion


class WholeDLQ:
    """The DLQ of one source, for brokers that can only read it as a whole. `begin` gives a reading of it, `count` asks the server
    how many letters wait."""

    page = AT_ONCE

    def __init__(
        self, broker: Broker, source: str, begin: Callable[[], AbstractContextManager[Reading]], count: Callable[[], int]
    ) -> None:
        self.broker, self._source, self._begin, self._counted = broker, source, begin, count
        self._lock = threading.RLock()
        self._look: Look | None = None
        self._frozen: Index | None = None

    @contextmanager
    def one_look(self, progress: Progress | None = None) -> Iterator[None]:
        """Everything that is asked until this ends is answered from one reading. Nobody else works on the DLQ meanwhile."""
        with self._looking(progress):
            yield

    @contextmanager
    def _looking(self, progress: Progress | None = None) -> Iterator[Look]:
        with self._lock:
            if self._look is not None:
                yield self._look
                return
            with self._begin() as reading:
                self._look = Look(reading, progress)
                try:
                    yield self._look
                finally:
                    if self._frozen is not self._look.index:
                        self._look.index.close()
                    self._look = None

    def count(self, state: str = DEAD) -> int:
        """How many wait is what the server says, unless all have been read; others have to be looked for."""
        if state == DEAD and self._look is None:
            return self._counted()
        with self._looking() as look:
            return look.count(state)

    def freeze(self) -> str:
        with self._looking() as look:
            if self._frozen is not None and self._frozen is not look.index:
                self._frozen.close()
            self._frozen = look.whole()
            last = next(reversed(list(self._frozen.entries(None))), None)
            return f"{self._source}-" if last is None else last.id

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = DEAD
    ) -> Sequence[DeadLetter]:
        """The pages that belong to one `freeze` come from one reading."""
        if only is None and (pages := self._pages(after, until)) is not None:
            return [pages.letter(entry) for entry in islice(pages.entries(state, after), limit)]
        with self._looking() as look:
            if only is not None:
                return [look.index.letter(entry) for entry in look.whole().find(only, state)]
            index = look.head(limit) if state == DEAD and not (after or until) else look.whole()
            return [index.letter(entry) for entry in islice(index.entries(state, after), limit)]

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str | None = DEAD) -> Sequence[str]:
        """As `browse`, without reading the letters themselves."""
        if (pages := self._pages(after, until)) is not None:
            return [entry.id for entry in islice(pages.entries(state, after), limit)]
        with self._looking() as look:
            return [entry.id for entry in islice(look.whole().entries(state, after), limit)]

    def _pages(self, after: str, until: str) -> Index | None:
        """The reading that pages of an earlier `freeze` come from, unless there is a newer one."""
        return self._frozen if (after or until) and self._look is None else None

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        with self._looking() as look:
            return self._changed(look, look.knowing(letter_ids).deal(letter_ids, "replayed"), "replayed")

    def remove(self, letter_ids: Sequence[str], *, state: str = DEAD, keep_as: str | None = None) -> Sequence[str]:
        with self._looking() as look:
            if state != DEAD:
                return self._changed(look, look.forget(letter_ids, state), GONE)
            if keep_as is None:
                return self._changed(look, look.knowing(letter_ids).delete(letter_ids), GONE)
            return self._changed(look, look.knowing(letter_ids).deal(letter_ids, keep_as), keep_as)

    def _changed(self, look: Look, letter_ids: Sequence[str], state: str) -> Sequence[str]:
        """Pages that come from an earlier reading tell of it too."""
        if self._frozen is not None and self._frozen is not look.index:
            self._frozen.changed(letter_ids, state)
        return letter_ids
