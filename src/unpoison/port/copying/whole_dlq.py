"""Work on a DLQ that can only be read as a whole.

Some brokers show a message only by handing it out: to look at letters means to take them all, under a lock, and to put them back.
A *reading* does that, as its broker can. Here is what is the same for all of them: one reading serves everything that is asked
during one look, the bytes of the letters wait in a temporary file, and only a line for each letter is kept in memory. The pages
that belong to one `freeze` come from one reading too.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice

from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import WHOLE_BYTES, Broker, Progress
from unpoison.port.copying.dlq_index import AT_ONCE, DEAD, GONE, Entry, Index, Reading


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

    def head(self, limit: int, after: str = "") -> Index:
        """Know the first letters that still wait behind this one, so many if there are."""
        index = self.past()
        if after and after not in index.waiting:
            return self.whole()
        while not self._is_whole and (missing := limit - len(index.page(after, limit))) > 0:
            self._take(index.taken + missing, None)
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

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        """During one look each page costs only its own letters, also if the letters of the pages before were removed meanwhile. A
        body may have been compressed: then it is larger than what was taken."""
        found: list[WholeLetter] = []
        with self._looking() as look:
            index = look.head(limit, after)
            for entry in index.page(after, limit):
                if most_bytes <= 0:
                    break
                found.append(index.whole(entry))
                most_bytes -= max(entry.size, len(found[-1].letter.body))
        return found

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
