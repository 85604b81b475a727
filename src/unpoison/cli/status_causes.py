"""Of what have messages become dead letters lately?

Letters of the store are read, and of DLQs that can be read without side effects.
"""

from collections.abc import Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from unpoison.brokers import dead_letters_for
from unpoison.cli.source_status import SourceStatus
from unpoison.errors import UnpoisonError
from unpoison.model.letter_group import LetterGroup, merged
from unpoison.port.broker import ClosesMore, DeadLetters, ReadAsAWhole
from unpoison.store.letters.sql_letters import letters_for
from unpoison.store.letters.values import StoredGroup

MOST_CAUSES = 5
PAGE, MOST_READ = 200, 2_000
"""Letters that are read at once, and in one look. The next look goes on behind them."""


class Latest(NamedTuple):
    """The groups of dead letters, the latest first, and the sources whose DLQ only a command that takes all letters can read."""

    groups: Sequence[LetterGroup] = ()
    unread: Sequence[str] = ()


class Causes:
    """The groups of dead letters of some sources. Used by one thread."""

    def __init__(self, url: str, store: str) -> None:
        self._url, self._store = url, store
        self._read: dict[str, _Read] = {}
        self._unread: set[str] = set()

    def look(self, found: Sequence[SourceStatus]) -> Latest:
        """The groups of those that wait."""
        sources = {each.source for each in found}
        groups = [group for group in self._stored() if sources & set(group.sources)]
        for status in found:
            dead = 0 if status.broker is None else status.broker.depth.dead
            with suppress(UnpoisonError):  # it is told of the source already, or there is no right to read letters
                groups += self._at_broker(status.source, dead)
        latest = sorted(merged(groups), key=lambda group: -group.last_failed_at)[:MOST_CAUSES]
        return Latest(latest, [status.source for status in found if status.source in self._unread])

    def _stored(self) -> list[LetterGroup]:
        if not self._store:
            return []
        with suppress(UnpoisonError), closing(letters_for(self._store)) as letters:
            letters.open(create=False)
            return [_shown(group) for group in letters.groups(state="dead", limit=PAGE)]
        return []

    def _at_broker(self, source: str, dead: int) -> Sequence[LetterGroup]:
        read = self._read.get(source)
        if read is None or read.count > dead:  # some were sent again or deleted
            read = self._read[source] = _Read()
        if dead > read.count and source not in self._unread:
            letters = dead_letters_for(self._url, source, create=False)
            try:
                if isinstance(letters, ReadAsAWhole):  # only by taking all letters under a lock
                    self._unread.add(source)
                else:
                    read.go_on(letters)
            finally:
                (letters if isinstance(letters, ClosesMore) else letters.broker).close()
        return list(read.groups.values())


class _Read:
    """What was read of one DLQ so far."""

    def __init__(self) -> None:
        self.count, self.groups = 0, dict[str, LetterGroup]()
        self._last = ""

    def go_on(self, letters: DeadLetters) -> None:
        until = self.count + MOST_READ
        while self.count < until and (page := letters.browse(after=self._last, limit=PAGE)):
            for letter in page:
                self.groups.setdefault(letter.fingerprint, LetterGroup(fingerprint=letter.fingerprint)).add(letter)
            self.count, self._last = self.count + len(page), page[-1].id


def _shown(group: StoredGroup) -> LetterGroup:
    sources = {source: sum(states.values()) for source, states in group.counts.items()}
    return LetterGroup(
        fingerprint=group.fingerprint,
        count=sum(sources.values()),
        sources=sources,
        first_failed_at=group.first_seen,
        last_failed_at=group.last_seen,
        classification=group.classification,
        error_type=group.error_type,
        error=group.error,
    )
