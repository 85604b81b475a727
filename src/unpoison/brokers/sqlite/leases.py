"""Which stretches of the line does this consumer hold, and when is one of them finished?

A lease row covers a stretch from its first to its last position. Its row may go once every message in it has been
settled; until then it stays, and after a crash whatever the line still holds of that stretch comes back.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """What a settle would change: how many stay open in each lease it touches, and which leases end."""

    remaining: dict[int, int]
    ended: list[int]


class Leases:
    """The leases held, in memory. `after` only computes: a settle that fails must leave no trace here."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._last: dict[int, int] = {}
        self._remaining: dict[int, int] = {}

    def add(self, first: int, count: int) -> None:
        insort(self._firsts, first)
        self._last[first] = first + count - 1
        self._remaining[first] = count

    def after(self, positions: Sequence[int]) -> Progress:
        """What is left once these (sorted) positions are settled."""
        remaining: dict[int, int] = {}
        for low, high in runs(positions):
            at = max(0, bisect_right(self._firsts, low) - 1)
            while at < len(self._firsts) and self._firsts[at] <= high:
                first = self._firsts[at]
                covered = min(high, self._last[first]) - max(low, first) + 1
                if covered > 0:
                    remaining[first] = remaining.get(first, self._remaining[first]) - covered
                at += 1
        return Progress(remaining, [first for first, count in remaining.items() if count == 0])

    def apply(self, progress: Progress) -> None:
        self._remaining.update(progress.remaining)
        for first in progress.ended:
            del self._remaining[first], self._last[first]
            self._firsts.remove(first)

    def clear(self) -> None:
        self._firsts.clear()
        self._last.clear()
        self._remaining.clear()


def runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The stretches without gaps in sorted positions, as (low, high). A batch handled in full is one of them."""
    if not positions:
        return
    if positions[-1] - positions[0] + 1 == len(positions):
        yield positions[0], positions[-1]
        return
    low = high = positions[0]
    for position in positions[1:]:
        if position != high + 1:
            yield low, high
            low = position
        high = position
    yield low, high
