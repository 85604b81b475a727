"""How long did it take to isolate a poison message, and who had to wait for it?

Both are worked out of what handlers and supervisor wrote down at the time. Pure: times in, seconds out.
"""

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise


def others_waited(
    starts: Sequence[float], ends: Sequence[float], others: Sequence[float], outages: Sequence[float], until: float
) -> float | None:
    """The longest time around the starts of one message in which no other was started; None if nobody was there to wait.

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
    """The median time from one start to the next: what is no waiting at all."""
    gaps = [late - early for early, late in pairwise(moments)]
    return statistics.median(gaps) if gaps else None


def in_words(seconds: float) -> str:
    """3 ms, 1.2 s."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"
