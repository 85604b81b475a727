"""How often may something be told, and how much at once?

The same thing once an hour, unless it has become ten times worse. A few notices in ten minutes; what is beyond that is told as
one summary. State machines without a clock.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from unpoison.model.wording import counted, in_words
from unpoison.notifying.notice import OF_LETTERS, Kind, Notice, Step

PERIOD = 3_600.0
"""Seconds for which the same thing is not told again."""
WORSE = 10
"""Unless it has become so many times worse."""
WINDOW = 600.0
"""Seconds within which notices are counted, and after which what was held back is told as one summary."""
MOST, MOST_OF_LETTERS = 10, 6
"""Notices within that time, and how many of them may be about dead letters."""
TOGETHER = 3
"""Notices of one kind that are due at once and told each by itself; more become one."""
SHOWN = 5
"""How many of several things a notice names."""
MOST_REMEMBERED = 10_000
"""Things of which it is known that they were told."""


class _Told(msgspec.Struct):
    at: float
    size: float


class Memory:
    """What was told, and when. Forgets what was told longest ago."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def may_tell(self, subject: str, size: float, now: float, period: float | None = PERIOD) -> bool:
        """Whether to tell it now; `period` None: again only if it is worse. If so, it counts as told."""
        told = self._told.get(subject)
        if told is not None and size < WORSE * told.size and (period is None or 0 <= now - told.at < period):
            return False
        self._told[subject] = _Told(now, size)
        self._told.move_to_end(subject)
        while len(self._told) > MOST_REMEMBERED:
            self._told.popitem(last=False)
        return True

    def __len__(self) -> int:
        return len(self._told)


def together(notices: Iterable[Notice]) -> list[Notice]:
    """Many notices of one kind become one."""
    found: list[Notice] = []
    for kind, each in groupby(sorted(notices, key=lambda notice: list(Kind).index(notice.kind)), lambda notice: notice.kind):
        alike = list(each)
        found += alike if len(alike) <= TOGETHER else [_as_one(kind, alike)]
    return found


_SEVERAL = {
    Kind.NEW_GROUP: "new groups of dead letters",
    Kind.GROWING: "sources with many dead letters",
    Kind.PAUSED: "sources are paused",
    Kind.RESUMED: "sources have resumed",
    Kind.OUTAGE: "outages",
    Kind.OUTAGE_OVER: "outages are over",
    Kind.CRASH_LOOP: "sources whose workers die again and again",
    Kind.BUDGET: "sources whose retry budget is used up",
    Kind.RETENTION: "sources whose messages are deleted soon",
}


def _as_one(kind: Kind, notices: Sequence[Notice]) -> Notice:
    largest = sorted(notices, key=lambda notice: -notice.size)
    sources = list(dict.fromkeys(notice.source for notice in notices))
    first = largest[0]
    counts = {"notices": len(notices), **_added(notice.counts for notice in notices)}
    return msgspec.structs.replace(
        first,
        subject=f"{kind}|*",
        size=float(len(notices)),
        title=f"{len(notices):,} {_SEVERAL[kind]}",
        source=sources[0] if len(sources) == 1 else "",
        since=min(notice.since for notice in notices),
        bad=f"{_amount(kind, notices)}; these are the largest:" if kind in OF_LETTERS else f"These are {SHOWN} of them:",
        counts=counts,
        fingerprint="",
        classification="",
        error="",
        letter_id="",
        parts=largest[:SHOWN],
    )


def _amount(kind: Kind, notices: Sequence[Notice]) -> str:
    letters = counted(int(sum(notice.counts.get("dead", 0) for notice in notices)), "dead letter")
    return f"{letters} so far" if kind is Kind.NEW_GROUP else f"{letters} within {in_words(WINDOW)}"


def _added(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update({name: value for name, value in each.items() if name == "dead"})
    return dict(total)


class Rate:
    """Lets a few notices pass, and keeps of the others what the summary says."""

    def __init__(self) -> None:
        self._passed: deque[tuple[float, bool]] = deque()
        self._held: Counter[Kind] = Counter()
        self._letters = 0.0
        self._largest: list[Notice] = []
        self._since: float | None = None
        """When the first one was held back."""

    def passing(self, notices: Iterable[Notice], now: float) -> list[Notice]:
        """Those that may be sent now."""
        while self._passed and now - self._passed[0][0] >= WINDOW:
            self._passed.popleft()
        found = []
        for notice in notices:
            if self._has_room(notice):
                self._passed.append((now, notice.kind in OF_LETTERS))
                found.append(notice)
            else:
                self.hold(notice, now)
        return found

    def _has_room(self, notice: Notice) -> bool:
        if notice.kind not in OF_LETTERS:
            return len(self._passed) < MOST
        is_calm = self._since is None  # once something was held back, dead letters are summed up until it is calm again
        return is_calm and len(self._passed) < MOST and sum(of for _, of in self._passed) < MOST_OF_LETTERS

    def hold(self, notice: Notice, now: float) -> None:
        """It is told with the next summary."""
        self._since = now if self._since is None else self._since
        self._held[notice.kind] += int(notice.counts.get("notices", 1))
        self._letters += notice.counts.get("dead", 0)
        parts = notice.parts or (notice,)
        self._largest = sorted([*self._largest, *parts], key=lambda each: (each.kind in OF_LETTERS, -each.size))[:SHOWN]

    def summary_at(self) -> float | None:
        """When the next summary is due, if anything is held back."""
        return None if self._since is None else self._since + WINDOW

    def summary(self, todo: Sequence[Step]) -> Notice | None:
        """What is held back, as one notice. It stays held back until `summed_up`."""
        if self._since is None:
            return None
        told = [f"{count:,} × {kind}" for kind, count in self._held.most_common()]
        total = sum(self._held.values())
        letters = f", with {counted(int(self._letters), 'dead letter')}" if self._letters else ""
        return Notice(
            kind=Kind.SUMMARY,
            subject="summary",
            size=1.0,
            title=f"{counted(total, 'further notice')} held back",
            source="",
            since=self._since,
            bad=f"{', '.join(told)}{letters}; the most important:",
            doing=f"More than {MOST} notices in {in_words(WINDOW)} are told as one. None of the messages is treated differently.",
            todo=todo,
            counts={"notices": total, "dead": self._letters, **{str(kind): count for kind, count in self._held.items()}},
            parts=tuple(self._largest),
        )

    def summed_up(self) -> None:
        self._held.clear()
        self._letters, self._largest, self._since = 0.0, [], None
