"""When a consumer ends: at a planned stop (`Stop`), or once its sources are empty (`UntilEmpty`, for `--until-empty`).

A run that says nothing for an hour looks as if it hung. So `UntilEmpty` logs what it waits for after a second, again when that
changes, and once a minute.

Handlers of one source may publish to another, so a consumer that finds its own source empty cannot end alone. Each consumer
notes what it saw together with how often anything had moved by then (`IdleAgreement`). The run is over once all have seen an
empty source and nothing has moved since the earliest of these looks.
"""

import heapq
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from unpoison.errors import PAUSES
from unpoison.model.wording import counted, in_words
from unpoison.port.broker import Broker, Capability, Depth, ExplainsWaits, Settlement, Waits
from unpoison.reporting.report import REMIND_EVERY, Report

SAY_AFTER = 1.0
"""Seconds: what is over sooner is not worth a line."""

MOST_DUES = 10_000

RETRY_BROKER = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two tries while the broker does not answer or cannot store; the last one repeats."""


class Stop:
    """A planned stop: whether it was asked for, and how long running messages may still take. Safe to use from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._asked = threading.Event()
        self._grace_ends = float("inf")

    def ask(self, grace: float) -> None:
        """Asking again shortens the grace."""
        self._grace_ends = min(self._grace_ends, self._monotonic() + grace)
        self._asked.set()

    def is_asked(self) -> bool:
        return self._asked.is_set()

    def grace(self) -> float:
        """Seconds that are left."""
        return self._grace_ends - self._monotonic()

    def wait_for_broker(self, tries: int = len(RETRY_BROKER)) -> bool:
        """Wait before the next try; False once a stop has used up its grace."""
        pause = RETRY_BROKER[min(tries, len(RETRY_BROKER) - 1)]
        if self._asked.is_set():
            time.sleep(min(pause, RETRY_BROKER[0]))
        else:
            self._asked.wait(pause)
        return self.grace() > 0


class IdleAgreement:
    """Shared by all consumers of a run."""

    def __init__(self, consumers: int = 1) -> None:
        self._consumers = consumers
        self._lock = threading.Lock()
        self._moves = 0
        self._is_over = False
        self._looks: dict[object, tuple[int, Callable[[], None]]] = {}

    def moved(self) -> None:
        """A consumer has taken or settled something, so what others saw before may no longer hold."""
        with self._lock:
            self._moves += 1

    def agreed(self, consumer: object, ring: Callable[[], None], is_empty: Callable[[], bool]) -> bool:
        """True once every source was empty at one and the same time. Those that have to look again are woken by their ring."""
        with self._lock:
            moves = self._moves  # before the look: what moves during it makes it worthless
        if not is_empty():
            return False
        with self._lock:
            self._looks[consumer] = (moves, ring)
            stale = [wake for seen, wake in self._looks.values() if seen != self._moves]
            self._is_over = self._is_over or (not stale and len(self._looks) == self._consumers)
            over = self._is_over
            waking = [wake for _, wake in self._looks.values()] if over else stale
        for wake in waking:
            wake()
        return over


class UntilEmpty:
    """Looks whether one source is empty, and all others of its run are too. `ring` wakes its consumer for another look."""

    def __init__(
        self,
        source: str,
        broker: Broker,
        report: Report,
        clock: Callable[[], float] = time.time,
        agreement: IdleAgreement | None = None,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        self._source, self._broker, self._report, self._clock = source, broker, report, clock
        self._agreement, self._ring = agreement or IdleAgreement(), ring
        self._dues: list[float] = []
        self._waits_since: float | None = None
        self._looks_after = self._reminds_at = float("-inf")
        self._said: object = None

    def settled(self, settlement: Settlement) -> None:
        """Note what this consumer itself has delayed: not every broker can tell when the next message is due."""
        for kept in settlement.kept:
            if kept.after > 0:
                now = self._clock()
                self._own_due(now)
                if len(self._dues) < MOST_DUES:
                    heapq.heappush(self._dues, now + kept.after)

    def goes_on(self) -> None:
        """There was something to do."""
        self._agreement.moved()
        self._waits_since = None

    def is_over(self, running: int) -> bool:
        """Every source of the run was empty at one and the same time."""
        return self._agreement.agreed(self, self._ring, lambda: self.is_empty(running))

    def is_empty(self, running: int) -> bool:
        """Nothing runs here, and nothing is ready, delayed or held by anyone."""
        try:
            depth = Depth() if running else self._broker.depth(self._source)
            if running == 0 and depth.empty:
                return True
            self._explain(running, depth)
        except PAUSES as error:
            self._report.paused(self._source, error)
        return False

    def _explain(self, running: int, depth: Depth) -> None:
        now = self._clock()
        if self._waits_since is None:
            self._waits_since = now
        if now < max(self._waits_since + SAY_AFTER, self._looks_after):
            return
        self._looks_after = now + SAY_AFTER
        is_elsewhere = bool(depth.delayed or depth.leased)
        waits = self._broker.waits(self._source) if is_elsewhere and isinstance(self._broker, ExplainsWaits) else Waits()
        kind = (running > 0, depth.ready > 0, depth.delayed > 0, depth.leased > 0, waits.holders)
        if kind == self._said and now < self._reminds_at:
            return
        self._said, self._reminds_at = kind, now + REMIND_EVERY
        due = (waits.due or self._own_due(now)) if depth.delayed else None
        is_exact = Capability.EXACT_DEPTH in self._broker.capabilities
        self._report.waiting(
            self._source,
            "; ".join(_reasons(running, depth, due, waits.holders, now, is_exact=is_exact)),
            running=running,
            ready=depth.ready,
            delayed=depth.delayed,
            held=depth.leased,
            due=None if due is None else datetime.fromtimestamp(due, UTC).isoformat(timespec="seconds"),
            holders=list(waits.holders),
        )

    def _own_due(self, now: float) -> float | None:
        while self._dues and self._dues[0] <= now:
            heapq.heappop(self._dues)
        return self._dues[0] if self._dues else None


def _reasons(running: int, depth: Depth, due: float | None, holders: tuple[str, ...], now: float, *, is_exact: bool) -> list[str]:
    found = []
    if running:
        found.append(_count(running, "runs", "run", is_exact=True) + " here")
    if depth.ready:
        found.append(_count(depth.ready, "waits", "wait", is_exact=is_exact) + " to be started")
    if depth.delayed:
        when = "" if due is None else f", the next one until {_moment(due)}, {in_words(max(0.0, due - now))} from now"
        found.append(_count(depth.delayed, "is", "are", is_exact=is_exact) + f" delayed{when}")
    if depth.leased:
        who = ", ".join(holders) if holders else "another consumer"
        found.append(_count(depth.leased, "is", "are", is_exact=is_exact) + f" held by {who}")
    return found


def _count(number: int, one: str, many: str, *, is_exact: bool) -> str:
    """A broker that only estimates is not quoted with a number."""
    if not is_exact:
        return f"messages {many}"
    return f"{counted(number, 'message')} {one if number == 1 else many}"


def _moment(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
