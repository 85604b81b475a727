"""What one reading of a DLQ has found so far.

The bytes of the letters wait in a temporary file, and in memory is a line for each: enough to find it, to tell copies of it apart
and to let it go.
"""

import heapq
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import msgspec

from unpoison.errors import BrokerUnavailable
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import Progress

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

    def whole(self, entry: Entry, data: bytes) -> WholeLetter:
        """The same, with all that is needed to send it back."""

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
        self._line: list[Entry] = []
        """What waits, in the order in which it is gone through page by page; up to `_passed` nothing waits any more."""
        self._passed = 0
        self._places: dict[str, int] = {}
        """Where the letters of the latest page stand in it, and the one before them."""

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
                self._line.append(entry)
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

    def page(self, after: str, limit: int) -> list[Entry]:
        """So many that still wait behind this one, in the order they came. Who deals with each page before the next one does not
        go through what is gone again and again."""
        while self._passed < len(self._line) and self._line[self._passed].state != DEAD:
            self._passed += 1
        start = self._behind(after) if after else 0
        numbers = (at for at in range(max(self._passed, start), len(self._line)) if self._line[at].state == DEAD)
        page = {self._line[at].id: at for at in islice(numbers, limit)}
        self._places = {after: start - 1, **page}
        return [self._line[at] for at in page.values()]

    def _behind(self, after: str) -> int:
        """Where the letters behind this one begin."""
        if after in self._places:
            return self._places[after] + 1
        first = next((each for each in self.entries(DEAD, after) if self.waiting.get(each.id) is each), None)
        return len(self._line) if first is None else next(at for at, each in enumerate(self._line) if each is first)

    def data(self, entry: Entry) -> bytes:
        self._file.seek(entry.at)
        self._was_read = True
        data: bytes = self._file.read(entry.size)
        return data

    def letter(self, entry: Entry) -> DeadLetter:
        return self._as_known(self._reading.letter(entry, self.data(entry)), entry)

    def whole(self, entry: Entry) -> WholeLetter:
        """Equal letters without an identity are told apart by how many came before: the next reading may count others."""
        found = self._reading.whole(entry, self.data(entry))
        has_identity = entry.identity is not None
        return msgspec.structs.replace(found, letter=self._as_known(found.letter, entry), has_identity=has_identity)

    def _as_known(self, letter: DeadLetter, entry: Entry) -> DeadLetter:
        return msgspec.structs.replace(letter, id=entry.id, state=entry.state)

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


T = TypeVar("T")


def portions(
    items: Iterable[T], most: int = AT_ONCE, most_bytes: int = MOST_BYTES, size_of: Callable[[T], int] = attrgetter("size")
) -> Iterator[list[T]]:
    """So many at a time, and no more bytes than that, but at least one."""
    portion: list[T] = []
    size = 0
    for item in items:
        more = size_of(item)
        if portion and (len(portion) == most or size + more > most_bytes):
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += more
    if portion:
        yield portion
