"""How is it said that messages came back from a consumer that vanished?

One sentence for every broker. Some know whose messages they were; others only hand a message out again, and say nothing else.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from unpoison.errors import OwnershipLost
from unpoison.model.events import fields
from unpoison.model.message import Counters
from unpoison.model.wording import counted

log = logging.getLogger("unpoison")

TAKEOVER_EVERY = 0.5
"""Seconds between two looks for consumers that vanished."""

TELL_EVERY = 1.0
"""Seconds: what comes back one fetch after the other is told together."""


class Takeover(msgspec.Struct, frozen=True):
    """A consumer that vanished: its name (host:pid), since when it had been there, and how many messages it held, by source."""

    who: str
    since: float | None
    held: Mapping[str, int]

    def tell(self) -> None:
        for source, count in self.held.items():
            if count:
                tell(source, count, self.who, self.since)


def tell(source: str, count: int, who: str = "", since: float | None = None) -> None:
    """These messages of a source came back."""
    began = None if since is None else datetime.fromtimestamp(since, UTC)
    whom = (
        f"consumer {who}{f' (running since {began:%Y-%m-%d %H:%M:%S UTC})' if began else ''}, which vanished"
        if who
        else "a consumer that vanished or lost its connection; the broker does not say which"
    )
    log.warning(
        "Source %r: %s came back from %s. It is unknown which of them were running, so all are started again; "
        "the first time none is charged.",
        source,
        counted(count, "message"),
        whom,
        extra=fields(
            "takeover",
            source=source,
            count=count,
            from_consumer=who or None,
            since=began and began.isoformat(timespec="seconds"),
        ),
    )


def ownership_lost(where: str, source: str | None = None) -> OwnershipLost:
    """The error for a consumer whose messages another one has taken over."""
    of = "" if source is None else f"of {source!r} "
    return OwnershipLost(
        f"Messages {of}that this consumer held in {where!r} were taken over by another one. "
        f"Its results are dropped; the messages run there."
    )


class CameBack:
    """Counts what a broker hands out again without saying whose it was, and tells it at most once a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, tell: Callable[[str, int], None] = tell) -> None:
        self._clock, self._tell = clock, tell
        self._counts: Counter[str] = Counter()
        self._tells_after: dict[str, float] = {}

    def note(self, source: str, count: int = 1) -> None:
        if count:
            self._counts[source] += count

    def note_suspect(self, source: str, known: Counters, found: Counters) -> None:
        """A message that must run alone was taken. More starts are on record than it tells of itself if one never ended."""
        self.note(source, int(found.losses > known.losses))

    def tell_due(self) -> None:
        """To be called with every fetch, after what it found was noted."""
        if self._counts:
            now = self._clock()
            for source in [each for each in self._counts if now >= self._tells_after.get(each, float("-inf"))]:
                self._tells_after[source] = now + TELL_EVERY
                self._tell(source, self._counts.pop(source))
