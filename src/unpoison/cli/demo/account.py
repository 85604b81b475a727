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
from itertools import pairwise
from typing import Any, NamedTuple

from unpoison.cli.demo.shop import KILLER, Entry, Kind, Traffic, message_id
from unpoison.cli.demo.stage import Observer, PlainLoop, Snapshot, Stage, Supervised
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


class Outcome(NamedTuple):
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


class Account(NamedTuple):
    """Everything that the demo reports. `twice` were shipped again after a kill, before they could be settled."""

    url: str
    seed: int
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
    lost: int
    poison: Sequence[Outcome]
    plain_loop: PlainLoop

    def as_json(self) -> dict[str, Any]:
        poison = [outcome.as_json() for outcome in self.poison]
        return self._asdict() | {"poison": poison, "plain_loop": self.plain_loop._asdict()}


def account(stage: Stage, seed: int, published: Traffic, observer: Observer, consumer: Supervised) -> Account:
    """Call it once the consumer has ended and the plain loop is stopped."""
    seen = observer.look()
    shipped = Counter(entry.order for entry in observer.entries if entry.what == "done")
    starts = [entry.at for entry in observer.entries if entry.what == "start"]
    outages = [death.at for death in consumer.deaths]
    waiting = seen.waiting + seen.retrying
    return Account(
        url=stage.url,
        seed=seed,
        published=len(published.bodies),
        done=seen.done,
        dead=seen.dead,
        discarded=seen.discarded,
        waiting=waiting,
        twice=sum(1 for times in shipped.values() if times > 1),
        restarts=consumer.restarts,
        worker_deaths=observer.worker_deaths,
        seconds=seen.seconds,
        usual_gap=usual_gap(sorted(starts)),
        lost=len(published.bodies) - seen.done - seen.dead - seen.discarded - waiting,
        poison=[_outcome(number, kind, seen, observer.entries, outages) for number, kind in published.poison.items()],
        plain_loop=seen.plain,
    )


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


def diagnosis(letter: DeadLetter) -> str:
    why = letter.reason.partition(" (")[2].removesuffix(")")
    if letter.classification == "invalid":
        why = _BODY_SHOWN.split(letter.error)[0]
    elif letter.error and not letter.error_type.startswith("unpoison."):
        why = f"{letter.error_type}: {letter.error}"
    return f"{letter.classification}: {why}"
