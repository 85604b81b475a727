"""Receive the messages of one queue before they are asked for, and acknowledge them.

A channel with consumers on it: the server pushes as many messages as their credit allows, and they wait in a buffer. The credit
follows what `fetch` asks for; when more is wanted another consumer with the difference joins, since the credit of a
running one cannot be raised. Credit is a count: once large bodies fill the buffer, its connection is not read any further
until they are fetched. If the channel ends, or a consumer on it, the server takes back everything that is held here.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any

from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.errors import Refused, Unanswered
from unpoison.brokers.rabbitmq.wire import HOLE_LASTS, AckRanges, Arrived, Tap, ack_frames
from unpoison.errors import BrokerUnavailable
from unpoison.port.copying.settling import ALL_LET_GO, LetGo, Receipt

ABSORBED = 64
"""So many messages may come, without harm, while consumers that have credit are cancelled."""

MOMENT = 0.1
"""Seconds for which it is watched how many messages come. A server takes a tenth of that, at most, to cancel a consumer."""

SOON = 0.02
"""Seconds within which the server has heeded what it has read."""

LOOKS = 50
MAX_CREDIT = 65535
FULL = 32 * 1024 * 1024
"""Bytes of bodies in the buffer beyond which nothing more is read."""


class Subscription(Tap):
    """A channel to which messages are pushed, on a connection that nothing else is asked on: its buffer has a limit in bytes.
    `check` raises if this user may no longer consume."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        ring: Callable[[], None],
        on_arrival: Callable[[], None],
        on_void: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self.connection, self._check, self._pauses = connection, check, True
        self._queue, self._ring, self._on_arrival, self._on_void = queue, ring, on_arrival, on_void
        self.buffer: deque[Arrived] = deque()
        self.tags: set[int] = set()
        """Of messages that are held."""
        self.alive = True
        self._acks = AckRanges()
        self._lock = threading.Lock()
        self._consumers: list[str] = []
        self._names = count()
        self._credit = 0
        self._watched, self._watched_credit, self._came = b"", 0, 0
        """The consumer that absorbs what comes while others are cancelled, its credit, and how many messages it got."""
        self._is_absorbed = threading.Event()
        self.is_wound_down = False
        """Nothing is wanted any more: what comes all the same is not to wait here."""
        self._bytes_in = self._bytes_out = 0  # each is changed by one thread only
        self._rung = False
        self._timer = False
        self._taken_at = time.monotonic()
        self._channel = connection.channel(self, self._void)
        self._channel.unless = lambda: self.is_full  # an answer comes after whatever is on its way, and nobody reads that then
        self._channel.on_cancel(self._void)

    # Called in the connection's thread.

    def arrived(self, message: Arrived) -> None:
        self.buffer.append(message)
        self._bytes_in += len(message.body)
        self._rung = True
        if message.consumer == self._watched:
            self._came += 1
            if self._came >= self._watched_credit:
                self._is_absorbed.set()

    def drained(self) -> None:
        if self._rung:
            self._rung = False
            if self._pauses:
                self._read_or_wait()
            self._on_arrival()
            self._ring()

    def _read_or_wait(self) -> None:
        self.connection.wire.pause(self.is_full)
        if not self.is_full:  # a fetch between the two would have seen no pause to end
            self.connection.wire.pause(False)

    def _void(self) -> None:
        """The server took everything back: a late ack would be ignored, or end the channel."""
        if self.alive:
            self.alive = False
            (self._on_void if self.is_holding else self._ring)()

    # Called by the consumer.

    @property
    def is_holding(self) -> bool:
        return bool(self.tags or self.buffer)

    @property
    def is_full(self) -> bool:
        """Whether so much waits here that nothing more is read, not even an answer."""
        return self._pauses and self._bytes_in - self._bytes_out > FULL

    def want(self, limit: int) -> bool:
        """Have credit for so many beyond those held. True if more had to be asked for."""
        self._taken_at = time.monotonic()
        self.is_wound_down, self._watched = False, b""
        if self.is_full:
            return False
        target = min(MAX_CREDIT, len(self.tags) + limit)
        missing = target - self._credit
        if missing <= 0:
            return False
        if len(self._consumers) >= 16:  # each costs the server a little; grow in large steps from here on
            missing = min(MAX_CREDIT, max(missing, self._credit))
        return self._consume(missing)

    def _consume(self, credit: int) -> bool:
        """Have another consumer, with this credit. False if it is no use to wait for the answer."""
        self._check_if_holding()
        try:
            self._join(f"unpoison-{next(self._names)}", credit)
        except Unanswered:
            return False
        return True

    def _check_if_holding(self) -> None:
        if self.is_holding:
            self._check()  # a refusal here would end the channel, and all that is held on it would come back

    def _join(self, name: str, credit: int, **options: Any) -> None:
        self._channel.set_credit(credit)
        self._consumers.append(name)
        self._credit += credit
        self._channel.consume(self._queue, consumer_tag=name, **options)

    def settle_down(self, limit: int) -> None:
        """Return once what was ready on the server has arrived, up to this limit."""
        with suppress(Unanswered):
            for _ in range(LOOKS):
                ready = self.ready()
                self.ready()  # what the server sent before its first answer is here before its second
                if ready == 0 or len(self.buffer) >= limit or not self.alive:
                    return

    def ready(self) -> int:
        return self._channel.ready(self._queue)

    def take(self, limit: int) -> list[Arrived]:
        taken = list(islice(self.buffer, limit)) if limit < len(self.buffer) else list(self.buffer)
        self.tags.update([message.tag for message in taken])  # first: at no moment may it look as if nothing were here
        for _ in taken:
            self.buffer.popleft()
        self._bytes_out += sum([len(message.body) for message in taken])
        if self.connection.wire.is_paused:
            self.connection.post(self._read_or_wait)
        self._taken_at = time.monotonic()
        return taken

    def put_back(self, taken: Sequence[Arrived]) -> None:
        """As if these had not been taken, but for those that were let go since."""
        still_held = [message for message in taken if message.tag in self.tags]
        self.buffer.extendleft(reversed(still_held))
        self._bytes_out -= sum([len(message.body) for message in still_held])
        self.tags.difference_update([message.tag for message in still_held])

    def _read_on(self) -> None:
        """From now on without a limit in bytes: an answer is needed, and it comes after whatever is on the way."""
        self._pauses = False
        self.connection.post(self._read_or_wait)

    def is_left_alone(self, after: float) -> bool:
        """Whether messages wait here and nobody has fetched any for so long, or will."""
        return bool(self.buffer) and (self.is_wound_down or time.monotonic() - self._taken_at > after)

    def held(self, receipts: Sequence[Receipt]) -> Sequence[Receipt]:
        tags = self.tags
        return [receipt for receipt in receipts if receipt.handle in tags] if self.alive else ()

    def let_go(self, receipts: Sequence[Receipt]) -> LetGo:
        """Acks have no answer: see `wait_until_let_go`. If one does not arrive, the message is handed out again."""
        self.acknowledge([receipt.handle for receipt in receipts])
        return ALL_LET_GO

    def acknowledge(self, tags: Sequence[int]) -> None:
        with self._lock:
            self.tags.difference_update(tags)
            acks = self._acks.finish(tags, max(1, self._credit // 4))
            starts_timer = self._acks.is_waiting and not self._timer
            self._timer = self._timer or starts_timer
            if acks:
                self._channel.send(ack_frames(self._channel.number, acks))
        if starts_timer:
            self._channel.connection.later(HOLE_LASTS, self._flush)

    def wait_until_let_go(self) -> None:
        """Return once the server has let go of what was finished here: this process may be about to end.

        Acks have no answer of their own, but the answer to a question behind them comes after they were heeded.
        """
        self._flush()
        if self.alive:
            with suppress(BrokerUnavailable, Unanswered):  # then the server has taken everything back, and no question is of use
                self.ready()

    def _flush(self) -> None:
        with self._lock:
            self._timer = False
            if acks := self._acks.flush():
                self._channel.send(ack_frames(self._channel.number, acks))

    def cancel(self) -> None:
        """Get no more. What was on its way is in the buffer when this returns, however large it is.

        The server forgets, and counts as returned, what it was about to send to a consumer that is cancelled; so it is given
        the time for an answer or two to send it.
        """
        self._read_on()
        if self._consumers:
            self.ready()
            self.ready()
        self._leave(self._consumers)
        self._pauses = True

    def _leave(self, consumers: Sequence[str]) -> None:
        """Cancel these."""
        self._consumers = [each for each in self._consumers if each not in consumers]
        self._credit = self._watched_credit if self._consumers else 0
        for each in consumers:
            self._channel.cancel(each)

    def wind_down(self) -> None:
        """As `cancel`, and nothing is counted as returned, however much arrives in the queue meanwhile.

        A quorum queue hands what arrives to any consumer with credit. If that consumer is just being cancelled, its channel puts
        the message back, counted as if a consumer had vanished: ten of them, at a thousand a second. So a consumer is cancelled
        only once its credit is used up, or while another one with a higher priority has credit for what comes. That one is
        replaced by one with credit for as many as came in a moment, and so on: soon one is used up. In a queue where nothing
        comes, the last one, with credit for one message, stays until that has come.
        """
        self._read_on()
        self.is_wound_down = True
        try:
            if self._consumers:
                self._check_if_holding()
                self._flush()  # what is acknowledged later would make room for other messages
                self._replace_until_full()
        except Refused as refused:
            if not refused.is_forbidden:
                raise
            self._leave(self._consumers)  # no other consumer may join
        finally:
            self._pauses = True

    def _replace_until_full(self) -> None:
        absorbs = ABSORBED
        while not (self._is_watched_full if self._is_watched_alone else self._has_ready()):
            if self._is_watched_alone and self._watched_credit == 1:
                return
            others = list(self._consumers)
            self._absorb(absorbs)
            self._leave(others)
            self._is_absorbed.wait(MOMENT)
            absorbs = max(1, self._came)
        self._leave(self._consumers)

    def _absorb(self, credit: int) -> None:
        """Have a consumer to which messages go before all others here."""
        number = next(self._names)
        name = f"unpoison-{number}"
        self._is_absorbed.clear()
        self._watched, self._watched_credit, self._came = name.encode(), credit, 0
        self._join(name, credit, arguments={"x-priority": number + 1})

    @property
    def _is_watched_alone(self) -> bool:
        return [each.encode() for each in self._consumers] == [self._watched]

    @property
    def _is_watched_full(self) -> bool:
        return self._came >= self._watched_credit

    def _has_ready(self) -> bool:
        """Whether messages wait in the queue: then no consumer of it has credit left."""
        if self.ready() == 0:
            return False
        time.sleep(SOON)
        return self.ready() > 0

    def push_one(self) -> None:
        """Have at most one message here, from a queue that none can be pulled from."""
        if not self._consumers:
            self._check_if_holding()
            self._absorb(1)
            self._is_absorbed.wait(MOMENT)
        self.wind_down()

    def close(self) -> None:
        self._read_on()
        self._flush()
        self.alive = False
        self._channel.close()
