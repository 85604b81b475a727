"""Tells the outage of a dependency from poison, and finds out when it is over.

    closed ── many different messages fail on it, and hardly any of them succeeds when run again ──► open
    open   ── one probe at a time, after 1 s, 2 s, 4 s … 15 s; one succeeds ──► ramp
    ramp   ── 1, 2, 4 … messages at a time; several in a row fail on it again ──► open
    ramp   ── nobody knows whether those that succeeded need it, and one fails on it ──► open
    ramp   ── enough at a time have succeeded, or none has failed for a while ──► closed

`Circuit` is that for one dependency. One message that fails often is never evidence: that is poison.
"""

import enum
import math
from collections.abc import Iterable
from typing import NamedTuple

from unpoison.control.counting import RecentCount
from unpoison.control.evidence import LATELY, MAX_RECOVERED, End, Ended, Evidence, FailingMessages
from unpoison.control.options import Breaker
from unpoison.control.turns import LONGEST_WAIT, Recovery, spread_out

MAX_PROBES = 3
"""Probes that run at the same time: one that outlasts its interval does not block the next."""
RAMP_ENDS = 64
RAMP_LASTS = 30.0
"""Seconds without a failure after which a ramp ends though few messages came."""
RAMP_FAILS = 3
"""Failures in a row by which a ramp ends in which nothing has succeeded yet but its probe."""
SURE_LEVEL = 8
"""At so many at a time a ramp is no longer doubted. Where three in ten messages do not need the dependency, those before succeed
without it once in a thousand times."""
FORGET_AFTER = 1_200.0
"""Seconds after which an open circuit closes if too few different messages failed on it: each that waits for it has come due. So
poison that fails on what works again is not kept waiting for ever."""
TURNS_AHEAD = 4
"""Probes at the longest interval for which a message is told to come back, however short the outage has been so far."""
NONE_ENDED = Ended()
GRANT_TAKES = 0.5
LEAST_RATE = 1.0
"""Messages a second that waited for a dependency and may start once it has recovered, however few needed it before."""


class CircuitState(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    RAMP = "ramp"


class Charge(enum.Enum):
    """What a failure on a dependency means for its message."""

    CHARGED = enum.auto()
    UNCHARGED = enum.auto()
    """It counts as evidence instead."""
    OUTAGE = enum.auto()
    """The dependency is known to be down: the message waits for a probe."""


class Weighed(NamedTuple):
    """What a failure means for its message, and how many of its earlier charges are taken back."""

    charge: Charge
    refund: int = 0


class Circuit:
    """The state of one dependency, as one consumer sees it.

    `is_named` says that the dependency is known by name or address; otherwise it is guessed from type and place of the error, and
    more evidence is needed. `needed_by_all`: every message of the source needs it, so a success of any of them speaks against an
    outage.
    """

    def __init__(self, dependency: str, options: Breaker, *, is_named: bool, needed_by_all: bool = False) -> None:
        self.dependency, self.is_named, self.needed_by_all, self._options = dependency, is_named, needed_by_all, options
        self.state = CircuitState.CLOSED
        self.evidence: Evidence | None = None
        self.end = End.RECOVERED
        """Of the latest outage."""
        self._failing = FailingMessages(
            dependency, options.messages, options.within, is_named=is_named, needed_by_all=needed_by_all
        )
        self._interval = options.first_probe
        self._probe_at = self._ramp_quiet_since = self._heard_at = 0.0
        self._turn_at = self._turn_step = 0.0
        """When the last message comes back that was told when its turn to probe comes, and how far it is from the one before."""
        self._others_until = 0.0
        """When the last of those comes back that have no turn yet."""
        self.recovery: Recovery | None = None
        """After an outage: how fast those that waited for it may start."""
        self._opened_at, self._new_while_open = 0.0, 0
        self._running: set[str] = set()
        self._level = self._succeeded = self._failed_in_a_row = 0
        self.is_doubtful = False
        """In a ramp: of those that have succeeded so far nobody knows whether they need it."""
        self._latest: dict[str, None] = {}
        """The different messages that failed last while it was open: one fewer than make an outage."""
        self._good_again, self._bad_again = RecentCount(options.within * LATELY), RecentCount(options.within * LATELY)
        """How many of those that were run again succeeded lately. Kept while it opens and closes."""
        self.needs_grant, self._granted_until = False, 0.0
        """With a fleet, a probe needs a grant: one consumer's probe serves all."""

    def failed(
        self,
        message: str,
        error: str,
        now: float,
        ended: Ended = NONE_ENDED,
        *,
        is_charged: bool = True,
        is_first: bool = True,
    ) -> Weighed:
        """A message has failed on the dependency. `is_first`: it had never failed before."""
        self._bad_again.add(not is_first, now)
        if self.state is CircuitState.RAMP:
            self._failed_in_ramp(message, now)
        self._running.discard(message)
        if self.state is not CircuitState.OPEN or self._is_news(message):
            self._heard_at = now
        if self.state is not CircuitState.CLOSED:
            self._new_while_open += is_first
            return Weighed(Charge.OUTAGE, self._failing.refund(message))
        self._failing.add(message, error, now, ended, is_first=is_first)
        if self._failing.are_outage(ended, now) and not self._is_flaky(now):
            self._open(now)
            return Weighed(Charge.OUTAGE, self._failing.refund(message))
        if self._failing.is_charged(message, now, is_charged=is_charged):
            return Weighed(Charge.CHARGED)
        return Weighed(Charge.UNCHARGED, self._failing.refund(message))

    def _failed_in_ramp(self, message: str, now: float) -> None:
        """Only what was let through decides, and not one failure: what is flaky works, and waiting does not make it better."""
        if message not in self._running:
            return
        self._failed_in_a_row += 1
        self._ramp_quiet_since = now
        has_only_probed = self._level == 1 and not self._succeeded
        most = min(RAMP_FAILS, self._options.messages) if has_only_probed else self._options.messages
        if self.is_doubtful or self._failed_in_a_row >= most:
            self._open_again(now)

    def _is_news(self, message: str) -> bool:
        """Whether so many other messages have failed since this one did that it takes more than them to make an outage."""
        is_news = message not in self._latest
        self._latest.pop(message, None)
        self._latest[message] = None
        if len(self._latest) >= self._options.messages:
            del self._latest[next(iter(self._latest))]
        return is_news

    def _is_flaky(self, now: float) -> bool:
        """Whether enough of those that were run again succeeded lately: then retries help, and waiting does not."""
        good = self._good_again.total(now)
        return good > MAX_RECOVERED * max(self._options.messages, good + self._bad_again.total(now))

    def recovered(self, message: str, now: float, *, needs_it: bool = True) -> None:
        """A message that had failed on the dependency, or was let through to try it, has succeeded. `needs_it`: for certain."""
        self._running.discard(message)
        self._heard_at = now
        self._good_again.add(needs_it, now)
        match self.state:
            case CircuitState.CLOSED:
                self._failing.recovered(message)
            case CircuitState.OPEN:
                self._begin_ramp(now)
                self.is_doubtful = not needs_it
            case CircuitState.RAMP:
                self._succeeded += 1
                self._failed_in_a_row = 0
                if self._succeeded >= self._level:
                    self._level, self._succeeded = 2 * self._level, 0
                self.is_doubtful = self.is_doubtful and not needs_it and self._level < SURE_LEVEL
                if self._level > RAMP_ENDS:
                    self.close()

    def _begin_ramp(self, now: float) -> None:
        self.state, self._ramp_quiet_since = CircuitState.RAMP, now
        self._level, self._succeeded, self._failed_in_a_row = 1, 0, 0
        self.recovery = self._recovery(now)

    def _recovery(self, now: float) -> Recovery:
        rate = self._new_while_open / max(1.0, now - self._opened_at)
        lasted, is_known = now - self._opened_at, self._new_while_open >= self._options.messages
        return Recovery(max(LEAST_RATE, rate), now, lasted, is_known=is_known)

    def ended_otherwise(self, message: str, now: float) -> None:
        """A probe has failed for another reason, or was cut off: it decides nothing, and another one may be tried."""
        if message in self._running:
            self._running.discard(message)
            if self.state is CircuitState.OPEN:
                self._probe_at = min(self._probe_at, now + self._options.first_probe)

    def room(self, now: float) -> int | None:
        """How many of the messages that wait for the dependency may start now; None if there is no limit."""
        match self.state:
            case CircuitState.CLOSED:
                return None
            case CircuitState.OPEN:
                is_due = now < self._granted_until if self.needs_grant else now >= self._probe_at
                return int(is_due and len(self._running) < MAX_PROBES)
            case CircuitState.RAMP:
                return max(0, self._level - len(self._running))

    def started(self, messages: Iterable[str], now: float) -> None:
        """These messages, which wait for the dependency, have been started."""
        for message in messages:
            self._running.add(message)
            if self.state is CircuitState.OPEN:
                self._granted_until = 0.0
                self._interval = min(self._options.longest_probe, 2 * self._interval)
                self._probe_at = self._next_probe(now)

    def _next_probe(self, now: float) -> float:
        """At the time for which a message was told to come back, even if this probe came a little late."""
        planned = self._probe_at + self._interval
        return planned if self._interval / 2 < planned - now <= self._interval else now + self._interval

    def next_probe_in(self, now: float) -> float | None:
        """Seconds until the next probe may start; None unless the circuit is open."""
        if self.state is not CircuitState.OPEN:
            return None
        if self.needs_grant:
            return 0.0 if now < self._granted_until else max(GRANT_TAKES, self._probe_at - now)
        return max(0.0, self._probe_at - now)

    def probe_due_in(self, now: float) -> float:
        """Seconds until a probe is due, whoever in the fleet makes it."""
        return max(0.0, self._probe_at - now)

    def grant(self, until: float) -> None:
        """This consumer may make one probe for the whole fleet. Then the turn of others comes."""
        self._granted_until = until

    @property
    def has_grant(self) -> bool:
        """Whether the last grant was not used, be it still valid or not."""
        return self._granted_until > 0

    def wait(self, times: int, spread: float, now: float, *, was_probe: bool = False, asked: float = 0.0) -> float:
        """Seconds for which a message that waits for the dependency is put off; it was put off so many times before.

        For each of the next probes one message comes back, in the order in which they were put off: a failed probe goes behind
        the others. The rest are put off for longer and longer, since each return may cost the broker a copy. `spread`, from 0 up
        to 1, keeps them apart. None is put off for much longer than the outage has lasted: it may be over soon. `asked` are the
        seconds for which the handler asked.
        """
        if self.state is not CircuitState.OPEN:
            return max(asked, self._options.first_probe * (1 + spread))
        longest = max(LONGEST_WAIT, self._options.longest_probe)
        turn, step = self._next_turn(now)
        is_near = asked <= turn - now <= min(longest, max(TURNS_AHEAD * self._options.longest_probe, now - self._opened_at))
        if is_near and not (was_probe and self._others_until > now and self._turn_at > now + step):
            self._turn_at, self._turn_step = turn, step
            return turn - now
        wait = max(asked, spread_out(min(longest, 4 * self._options.longest_probe * math.exp2(min(times, 32))), spread))
        self._others_until = max(self._others_until, now + min(wait, longest))
        return wait

    def _next_turn(self, now: float) -> tuple[float, float]:
        """When the probe comes that no message is to come back for yet, and how far it is from the one before."""
        if self._turn_at <= now:
            return max(self._probe_at, now + self._options.first_probe), self._interval
        step = min(self._options.longest_probe, 2 * self._turn_step)
        return self._turn_at + step, step

    def expire(self, now: float) -> None:
        """Close it if nothing was heard of it for long, or if its ramp has lasted long enough; one that is doubted shows nothing.
        An outage of the whole fleet is over when the fleet says so."""
        if self.needs_grant and self.state is CircuitState.OPEN:
            return
        since, longest = (
            (self._ramp_quiet_since, RAMP_LASTS) if self.state is CircuitState.RAMP else (self._heard_at, FORGET_AFTER)
        )
        if self.state is CircuitState.CLOSED or now - since <= longest:
            return
        if self.is_doubtful:
            self._open_again(now)
        else:
            self.close(End.QUIET if self.state is CircuitState.RAMP else End.FORGOTTEN)

    def was_held(self, seconds: float, now: float) -> None:
        """Nothing could start for so long: that nothing was heard of it says nothing."""
        self._heard_at = min(now, self._heard_at + seconds)
        self._ramp_quiet_since = min(now, self._ramp_quiet_since + seconds)

    def is_idle(self, now: float) -> bool:
        """Whether there is nothing left to know about it."""
        return self.state is CircuitState.CLOSED and now - self._heard_at > self._options.within

    def follow_fleet(self, evidence: Evidence, interval: float, probe_in: float, now: float) -> None:
        """A consumer of the fleet knows of the outage, and probes at this interval."""
        if self.state is CircuitState.CLOSED:
            self._begin(evidence, now)
            self._probe_at = self._heard_at = now
        self._interval = min(self._options.longest_probe, max(self._interval, interval))
        self._probe_at = max(self._probe_at, now + probe_in)

    @property
    def interval(self) -> float:
        return self._interval

    @property
    def heard_at(self) -> float:
        """When a message last failed on the dependency, or tried it, here."""
        return self._heard_at

    def ended_elsewhere(self, end: End, now: float) -> None:
        """It was ended for the whole fleet. What waited here has not started yet."""
        if self.state is CircuitState.OPEN:
            self.recovery = self._recovery(now)
        self.close(end)

    def close(self, end: End = End.RECOVERED) -> None:
        """The dependency works again, as far as is known."""
        self.end = end
        self.state, self.evidence, self.is_doubtful = CircuitState.CLOSED, None, False
        self._failing.clear()
        self._running.clear()
        self._latest.clear()
        self._interval, self._turn_at, self._granted_until = self._options.first_probe, 0.0, 0.0

    def successes_before(self) -> int:
        """How many messages of the source had succeeded when the earliest of the latest failures came."""
        return self._failing.successes_before()

    def _open(self, now: float) -> None:
        self._begin(self._failing.evidence(), now)
        self._probe_at = now + self._interval

    def _begin(self, evidence: Evidence, now: float) -> None:
        """An outage begins, whoever has found it. What was known of an earlier one no longer counts."""
        self.state, self.evidence, self.recovery = CircuitState.OPEN, evidence, None
        self._interval = self._options.first_probe
        self._turn_at = self._others_until = 0.0
        self._opened_at, self._new_while_open = now, 0

    def _open_again(self, now: float) -> None:
        self.state, self.recovery, self.is_doubtful = CircuitState.OPEN, None, False
        self._probe_at = now + self._interval
