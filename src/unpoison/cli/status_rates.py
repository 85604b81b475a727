"""How fast is each source, as the differences between two looks tell?"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unpoison.cli.source_status import SourceStatus
from unpoison.store.port import ConsumerSign

WINDOW = 10.0
"""Seconds over which rates are taken: consumers report their counts every two seconds."""


class SourceRates(NamedTuple):
    """Messages a second; None where nobody tells. `net` is by how much what waits and runs grows."""

    done: float | None = None
    failed: float | None = None
    dead: float | None = None
    net: float | None = None


class Rates:
    """The looks of the last seconds."""

    def __init__(self) -> None:
        self._looks: deque[Mapping[str, SourceStatus]] = deque()

    def add(self, found: Sequence[SourceStatus]) -> None:
        """A new look; an empty one, because nobody answered, says nothing."""
        if not found:
            return
        self._looks.append({each.source: each for each in found})
        while len(self._looks) > 2 and _at(self._looks[1]) <= _at(self._looks[-1]) - WINDOW:
            self._looks.popleft()

    def of(self, source: str) -> SourceRates:
        looks = [each[source] for each in self._looks if source in each]
        seconds = looks[-1].now - looks[0].now if looks else 0.0
        return _rates(looks[0], looks[-1], seconds) if seconds > 0 else SourceRates()


def _at(look: Mapping[str, SourceStatus]) -> float:
    return next(iter(look.values())).now


def _rates(before: SourceStatus, after: SourceStatus, seconds: float) -> SourceRates:
    dead = None if before.dead is None or after.dead is None else max(0, after.dead - before.dead) / seconds
    net = None
    if before.broker is not None and after.broker is not None:
        net = (_undone(after) - _undone(before)) / seconds
    if before.store is None or after.store is None or not after.store.consumers:
        return SourceRates(None, None, dead, net)
    known = {(each.consumer, each.started_at): each for each in before.store.consumers}
    pairs = [
        (known.get((each.consumer, each.started_at)), each)
        for each in after.store.consumers
        if (each.consumer, each.started_at) in known or each.started_at >= before.now
    ]
    done, failed, dead = (sum(_more(name, *pair) for pair in pairs) / seconds for name in ("done", "failed", "dead"))
    return SourceRates(done, failed, dead, net)


def _undone(status: SourceStatus) -> int:
    depth = None if status.broker is None else status.broker.depth
    return 0 if depth is None else depth.ready + depth.delayed + depth.leased


def _more(name: str, before: ConsumerSign | None, after: ConsumerSign) -> int:
    """What one consumer has counted since; one that was not there before has begun at 0."""
    counted: int = getattr(after, name) - (0 if before is None else getattr(before, name))
    return max(0, counted)
