"""What does a message wait for, before it may be started?

Those of the source's own topic for nothing. In the group's retry topic each partition has its purpose: there are those whose
time has not come, those that must run alone, and those that somebody still runs whose partition has gone elsewhere.
"""

import heapq
import itertools
import time
from collections.abc import Sequence

from unpoison.brokers.kafka import envelope, publishing
from unpoison.brokers.kafka.connection import Session
from unpoison.brokers.kafka.envelope import HOLDER, REF, Record, due
from unpoison.brokers.kafka.group_member import Line
from unpoison.brokers.kafka.names import AGAIN, HELD, LANE, REPLAYS, Names
from unpoison.brokers.kafka.partition import Part
from unpoison.brokers.kafka.replays import Stops
from unpoison.errors import BrokerUnavailable

LOOK_FOR_HOLDERS = 0.5
WAIT_AFTER_TROUBLE = 0.1
FAR = 3600.0
MOST_RESTING, MOST_RESTING_BYTES = 1_000, 4 * 1024 * 1024
"""What is read of one partition before its time."""


class Handing:
    """Hands what is in somebody's hand over to the group: a copy that waits while that somebody lives."""

    def __init__(self, session: Session, names: Names, line: Line) -> None:
        self._session, self._names, self._line = session, names, line

    def hand_over(self, part: Part) -> None:
        with self._line.changed:
            moved = {
                offset: publishing.held(self._names, part, record, self._session.name) for offset, record in part.hand.items()
            }
        refused = self._session.store([copy for _, copy in moved.values()])
        settled: list[str] = []
        with self._line.changed:
            for number, (offset, (ref, _)) in enumerate(moved.items()):
                if number in refused:
                    continue
                if offset not in part.hand:
                    settled.append(ref)
                    continue
                part.away[offset] = (ref, part.hand[offset])
                part.finish(offset)
        self._session.store([publishing.note(self._names, ref) for ref in settled])


class Straight(Handing):
    """The source's own topic."""

    def arrange(self, part: Part, records: Sequence[Record]) -> None:
        part.fresh.extend(records)

    def sleep(self) -> float:
        return FAR

    def tick(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Nothing is open here."""


class Retries(Handing):
    """The group's retry topic."""

    def next_due(self) -> float | None:
        """When the first of those is due that were read and wait here."""
        with self._line.changed:
            return self._due[0][0] if self._due else None

    def __init__(self, session: Session, names: Names, line: Line) -> None:
        super().__init__(session, names, line)
        self._due: list[tuple[float, int, Part, int]] = []
        self._order = itertools.count()
        self._held: dict[str, tuple[Part, int, str]] = {}
        self._absent: dict[str, int] = {}
        self._looked_at = 0.0
        self._stops = Stops(session)

    def arrange(self, part: Part, records: Sequence[Record]) -> None:
        if part.number in (REPLAYS, LANE):
            records = self._stops.sift(part, records)
        if part.number in (AGAIN, REPLAYS):
            part.fresh.extend(records)
            return
        for record in records:
            part.rest(record)
            if part.number == HELD:
                self._arrange_held(part, record)
            elif part.number != LANE:
                heapq.heappush(self._due, (due(record), next(self._order), part, record.offset()))

    def _arrange_held(self, part: Part, record: Record) -> None:
        ref, holder = envelope.field(record, REF) or "", envelope.field(record, HOLDER)
        if holder is not None:
            known = self._held.get(ref)
            if known and known[0] is part:
                part.finish(record.offset())  # stored twice, since the server was slow to say that it has it
            else:
                self._held[ref] = (part, record.offset(), holder)
            return
        part.finish(record.offset())  # a note
        if ref in self._held:
            _, offset, _ = self._held.pop(ref)
            part.finish(offset)

    def sleep(self) -> float:
        with self._line.changed:
            if self._stops.doubtful:
                return 0.0
            return max(0.0, self._due[0][0] - self._session.now()) if self._due else FAR

    def tick(self) -> None:
        if self._due:
            self._session.learn_the_time(self._names.states)
        with self._line.changed:
            now = self._session.now()
            while self._due and self._due[0][0] <= now:
                _, _, part, offset = heapq.heappop(self._due)
                if not part.is_lost:
                    part.wake_up(offset)
            self._held = {ref: each for ref, each in self._held.items() if not (each[0].is_lost or each[0].is_deleted)}
            held = list(self._held.values())
        self._pace()
        if self._stops.doubtful:
            self._clear()
        if held and time.monotonic() - self._looked_at > LOOK_FOR_HOLDERS:
            self._looked_at = time.monotonic()
            self._look_for_holders()

    def _clear(self) -> None:
        """Learn which copies of letters count, of those that were sent before this consumer came."""
        if not self._stops.look():
            time.sleep(WAIT_AFTER_TROUBLE)
            return
        with self._line.changed:
            for part, offset in self._stops.cleared():
                if part.number == REPLAYS:
                    part.wake_up(offset)
            self._line.changed.notify_all()

    def _pace(self) -> None:
        """Read no more of a partition while a lot of it waits: an hour's delays would fill the memory."""
        for part in list(self._line.parts.values()):
            much = len(part.resting) > MOST_RESTING or part.resting_size > MOST_RESTING_BYTES
            little = len(part.resting) <= MOST_RESTING // 2 and part.resting_size <= MOST_RESTING_BYTES // 2
            if (much and not part.is_paused) or (little and part.is_paused):
                self._line.pause(part, paused=much)

    def _look_for_holders(self) -> None:
        """What somebody held who is no more can be started by others. Missing twice in a row means gone."""
        try:
            there = self._session.members(self._names.retry_group)
        except BrokerUnavailable:
            return
        with self._line.changed:
            missing = {holder for _, _, holder in self._held.values()} - there - {self._session.name}
            self._absent = {holder: self._absent.get(holder, 0) + 1 for holder in missing}
            gone = {ref: each for ref, each in self._held.items() if self._absent.get(each[2], 0) >= 2}
        for ref, (part, offset, _) in gone.items():
            self._free(part, offset)
            self._held.pop(ref, None)

    def _free(self, part: Part, offset: int) -> None:
        with self._line.changed:
            if offset in part.resting:
                part.levels[offset] = min(2, part.levels.get(offset, 0) + 1)
                part.wake_up(offset)

    def suspect(self) -> tuple[Part, Record] | None:
        """The first one that must run alone, if it can be had here."""
        part = self._line.parts.get(LANE)
        if part is None or not part.is_known:
            return None
        first = min((offset for offset in part.resting if (part, offset) not in self._stops.doubtful), default=None)
        return None if first is None else (part, part.resting[first])

    def close(self) -> None:
        self._stops.close()
