"""Let a message wait for any time without holding up others.

It waits in queues of fixed delays that all sources share: where all messages wait equally long none waits behind a longer one.
A delay is written in tenths of a second, digit by digit (12.3 s is 1-2-3): the message goes through one queue for each digit
that is not zero, from the top down, and home from the last. So nothing is rounded by more than a tenth of a second, and jitter
stays what it was, with 64 queues for delays up to eleven days. What is longer goes round again.

The queues hand on at-least-once: a message leaves one only when the next has confirmed it.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.errors import PRECONDITION_FAILED, Refused
from unpoison.brokers.rabbitmq.names import delayed_of
from unpoison.brokers.rabbitmq.properties import Header, header
from unpoison.brokers.rabbitmq.topology import Binding, Queue, Topology
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.errors import BrokerUnavailable

LEVELS = 7
LONGEST = 10**LEVELS - 1
"""Tenths of a second that one way down the ladder can take."""


class Way(NamedTuple):
    """Into which exchange a delayed message goes, and the headers that lead it on."""

    level: int
    exchange: str
    headers: list[Header]


def way(delay: float) -> Way:
    """How to wait for `delay` seconds: not less, and less than a tenth more. What does not fit into one way is in its headers."""
    tenths = max(1, math.ceil(round(delay * 10, 6)))
    now = min(tenths, LONGEST)
    digits = _digits(now)
    level = max(place for place, digit in enumerate(digits) if digit)
    headers = [digit_header(place, digit) for place, digit in enumerate(digits[: level + 1])]
    if tenths > now:
        headers.append(header(b"x-unpoison-wait", (tenths - now) / 10))
    return Way(level, exchange_of(level), headers)


def _digits(tenths: int) -> list[int]:
    """From the lowest up. The lowest is never zero, since only from its queues there is a way home: 40 is 3 and 10."""
    rest, digits = tenths - 1, []
    for _ in range(LEVELS):
        rest, digit = divmod(rest, 10)
        digits.append(digit)
    digits[0] += 1
    return digits


@cache
def digit_header(place: int, digit: int) -> Header:
    return header(b"unpoison-d%d" % place, digit)


def exchange_of(level: int) -> str:
    return f"unpoison.delay.{level}"


def rung(level: int, digit: int) -> str:
    """The name says how long: unpoison.delay.0.3s, unpoison.delay.40s. From unpoison.delay.1.0s the way leads home."""
    return f"unpoison.delay.{digit / 10}s" if level == 0 else f"unpoison.delay.{digit * 10 ** (level - 1)}s"


def rungs(level: int) -> range:
    return range(1, 11 if level == 0 else 10)


def queue_of(level: int, digit: int) -> Queue:
    return Queue(
        rung(level, digit),
        {
            "x-queue-type": "quorum",
            "x-message-ttl": digit * 10**level * 100,
            "x-dead-letter-exchange": exchange_of(level - 1) if level else "",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    )


def bindings_of(level: int) -> Iterator[Binding]:
    """By its digit of this level a message goes into a queue; one whose digit is zero goes on to the level below."""
    exchange, header = exchange_of(level), f"unpoison-d{level}"
    for digit in rungs(level):
        yield Binding(exchange, rung(level, digit), "", {"x-match": "all", header: digit})
    if level:
        yield Binding(exchange, exchange_of(level - 1), "", {"x-match": "all", header: 0}, "exchange")


class Ladder:
    """The delay queues of one virtual host, made level by level, from the bottom up, when one is first needed."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._made = 0
        self._seen = 0

    def ensure(self, level: int) -> None:
        """Have all queues up to this level. Where nothing may be made, they were looked for at start-up."""
        if not self._topology.creates:
            return
        while self._made <= level:
            self._make(self._made)
            self._made += 1

    def waiting(self) -> int:
        """How many messages wait on it, of all sources. Counted from the top down, as they move."""
        while self._seen < LEVELS and self._topology.exists(exchange_of(self._seen)):
            self._seen += 1
        return sum(
            self._topology.count(rung(level, digit))[0]
            for level in reversed(range(self._seen))
            for digit in reversed(rungs(level))
        )

    def _make(self, level: int) -> None:
        for digit in rungs(level):
            try:
                self._topology.declare(queue_of(level, digit))
            except Refused as refused:
                if refused.code != PRECONDITION_FAILED:
                    raise
                raise BrokerUnavailable(
                    f"Queue {rung(level, digit)!r} was made by something else and would not hand messages on: {refused.text}. "
                    f"Once it is empty: rabbitmqctl delete_queue {rung(level, digit)}"
                ) from None
        self._topology.declare_exchange(exchange_of(level), "headers")
        for bound in bindings_of(level):
            self._topology.bind(bound)


MARGIN, SLACK = 2.0, 1.0
"""Seconds that a note lives on after its message should be back, and how many of them are kept for a server that is busy."""


class DelayNotes:
    """Notes of one process that messages of a source are delayed.

    All sources of a virtual host share the delay queues, and RabbitMQ tells how many messages are in them, not whose. So a note
    goes into `<queue>.delayed` with each delayed message and expires a little after the message is back. While there is no note,
    no message of this source is delayed. One note stands for all messages that are back before it expires, so there are few.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._covered: dict[str, float] = {}

    def needed(self, delays: Iterable[tuple[str, float]]) -> list[Copy]:
        """The notes to store beside messages of these sources that are delayed by so many seconds."""
        now, found = self._clock(), []
        for source, delay in dict(sorted(delays)).items():  # the longest delay of each source
            if delay > 0 and now + delay > self._covered.get(source, float("-inf")):
                self._covered[source] = now + delay + MARGIN - SLACK
                found.append(Copy("", delayed_of(source), properties.expiring(delay + MARGIN), b""))
        return found

    def forget(self) -> None:
        """Some may not be stored."""
        self._covered.clear()
