"""Where did every order go? Counted at the end.

done, discarded   from the ledger that the handlers write
dead, waiting     from the broker
lost              computed: published, and none of the others
"""

import re
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from unpoison.cli.demo.plain_loop import order_of
from unpoison.cli.demo.shop import KILLER, Entry, Kind, Traffic, message_id
from unpoison.cli.demo.stage import Observer, Snapshot, Stage, Supervised, orders
from unpoison.model.dead_letter import DeadLetter

# Times: how long it took to isolate a poison message, and how long others waited for it. Pure functions of the times that the
# handlers and the supervisor recorded.


def others_waited(
    starts: Sequence[float], ends: Sequence[float], others: Sequence[float], outages: Sequence[float], until: float
) -> float | None:
    """The longest time around the starts of one message in which no other was started; None if no other was waiting.

    `ends` are when its starts ended, as far as known. `others` are the starts of all other messages, in order, and `until`
    is when the last of these was taken from the line. A start during which the consumer was killed, by another message and
    so at one of `outages`, says nothing about this one.
    """
    gaps = []
    for start in starts:
        end = min((moment for moment in ends if moment >= start), default=start)
        first, last = bisect_right(others, start), bisect_right(others, end)
        if last == len(others) or others[last] > until:
            continue
        moments = [start, *others[first : last + 1]]
        if any(start <= outage <= moments[-1] for outage in outages):
            continue
        gaps.append(longest_gap(moments))
    return max(gaps, default=None)


def longest_gap(moments: Sequence[float]) -> float:
    return max((late - early for early, late in pairwise(moments)), default=0.0)


def usual_gap(moments: Sequence[float]) -> float | None:
    """The median time from one start to the next, when nothing is held up."""
    gaps = [late - early for early, late in pairwise(moments)]
    return statistics.median(gaps) if gaps else None


def in_words(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


_BODY_SHOWN = re.compile("; the body begins |, near ")

STUCK = 1.0
"""Seconds without a start after which the plain loop is not slow but stuck."""


@dataclass(frozen=True, slots=True)
class Accounting:
    """Where the orders of unpoison's consumer are. `twice` were shipped again after a kill, before they could be settled."""

    published: int
    done: int
    dead: int
    discarded: int
    waiting: int
    twice: int
    restarts: int
    worker_deaths: int
    seconds: float
    usual_gap: float | None

    @property
    def lost(self) -> int:
        return self.published - self.done - self.dead - self.discarded - self.waiting


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one poisoned order.

    `took` is from the first start of its handler to its dead letter, or to the end that it found otherwise; None if it was
    never started. `others_waited` is the longest time around its starts in which no other order was started.
    """

    order: int
    kind: Kind
    state: str
    letter: DeadLetter | None
    starts: int
    took: float | None
    others_waited: float | None

    @property
    def fate(self) -> str:
        return {"healed": "done", "dead": "dead", "discarded": "discarded"}.get(self.state, "waiting")

    def as_json(self) -> dict[str, Any]:
        letter = self.letter
        return {
            "kind": self.kind.name,
            "story": self.kind.story,
            "order": message_id(self.order),
            "fate": self.fate,
            "letter": letter and letter.id,
            "classification": letter and letter.classification,
            "rule": letter and letter.rule,
            "diagnosis": diagnosis(letter) if letter else self.kind.story,
            "starts": self.starts,
            "took": self.took,
            "others_waited": self.others_waited,
        }


@dataclass(frozen=True, slots=True)
class PlainResult:
    """What a plain loop did with the same messages in the same time. Only sound orders count as done."""

    sound: int
    done: int
    waiting: int
    lost: int
    restarts: int
    is_down: bool
    stuck_at: str | None
    stuck_on: str | None
    requeued: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Account:
    """Everything that the demo reports."""

    url: str
    seed: int
    orders: Accounting
    poison: Sequence[Outcome]
    plain: PlainResult

    def as_json(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "seed": self.seed,
            **asdict(self.orders),
            "lost": self.orders.lost,
            "poison": [outcome.as_json() for outcome in self.poison],
            "plain_loop": asdict(self.plain),
        }


def account(stage: Stage, seed: int, published: Traffic, observer: Observer, consumer: Supervised) -> Account:
    """Call it once the consumer has ended and the plain loop is stopped."""
    seen = observer.look()
    shipped = Counter(entry.order for entry in observer.entries if entry.what == "done")
    starts = [entry.at for entry in observer.entries if entry.what == "start"]
    accounting = Accounting(
        published=len(published.bodies),
        done=seen.done,
        dead=seen.dead,
        discarded=seen.discarded,
        waiting=seen.waiting + seen.retrying,
        twice=sum(1 for times in shipped.values() if times > 1),
        restarts=consumer.restarts,
        worker_deaths=observer.worker_deaths,
        seconds=seen.seconds,
        usual_gap=usual_gap(sorted(starts)),
    )
    outages = [death.at for death in consumer.deaths]
    outcomes = [_outcome(number, kind, seen, observer.entries, outages) for number, kind in published.poison.items()]
    return Account(stage.url, seed, accounting, outcomes, _plain(stage, published, observer.plain_entries, seen))


def _outcome(number: int, kind: Kind, seen: Snapshot, entries: Sequence[Entry], outages: Sequence[float]) -> Outcome:
    letter = seen.letters.get(number)
    own = [entry for entry in entries if entry.order == number]
    starts = [entry.at for entry in own if entry.what == "start"]
    failures = [past.at for past in letter.history] if letter else []
    ended = letter.last_failed_at if letter else max((entry.at for entry in own if entry.what != "start"), default=None)
    others = sorted(entry.at for entry in entries if entry.what == "start" and entry.order != number)
    waited = others_waited(
        starts,
        sorted([*failures, *outages]) if kind is KILLER else failures,
        others,
        [] if kind is KILLER else outages,
        _line_was_empty(entries),
    )
    return Outcome(
        order=number,
        kind=kind,
        state=seen.states[number],
        letter=letter,
        starts=len(starts),
        took=ended - starts[0] if starts and ended is not None else None,
        others_waited=waited,
    )


def _line_was_empty(entries: Sequence[Entry]) -> float:
    """When the last order was first started. After that a pause delays no order."""
    first: dict[int, float] = {}
    for entry in entries:
        if entry.what == "start":
            first.setdefault(entry.order, entry.at)
    return max(first.values(), default=0.0)


def _plain(stage: Stage, published: Traffic, entries: Sequence[Entry], seen: Snapshot) -> PlainResult:
    waiting = {order_of(file) for file in stage.spool.waiting()}
    done = orders(entries, "done")
    sound = set(range(1, len(published.bodies) + 1)) - published.poison.keys()
    is_stuck = seen.plain.at is not None and (seen.plain.is_down or seen.plain.idle_for > STUCK)
    at = seen.plain.at if is_stuck else None
    kind = published.poison.get(at) if at is not None else None
    return PlainResult(
        sound=len(sound),
        done=len(done & sound),
        waiting=len(waiting & sound),
        lost=len(sound - done - waiting),
        restarts=seen.plain.restarts,
        is_down=seen.plain.is_down,
        stuck_at=None if at is None else message_id(at),
        stuck_on=None if kind is None else kind.name,
        requeued=sum(1 for entry in entries if entry.what == "requeue"),
        seconds=seen.seconds,
    )


def diagnosis(letter: DeadLetter) -> str:
    why = letter.reason.partition(" (")[2].removesuffix(")")
    if letter.classification == "invalid":
        why = _BODY_SHOWN.split(letter.error)[0]
    elif letter.error and not letter.error_type.startswith("unpoison."):
        why = f"{letter.error_type}: {letter.error}"
    return f"{letter.classification}: {why}"
