"""Receive the messages of one queue before they are asked for, and acknowledge them.

A channel with consumers on it: the server pushes as many messages as their credit allows, and they wait in a buffer. The credit
follows what `fetch` asks for; when more is wanted another consumer with the difference joins, since the credit of a
running one cannot be raised. Credit is a count: once large bodies fill the buffer, its connection is not read any further
until they are fetched. If the channel ends, or a consumer on it, the server takes back everything that is held here.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any

from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.errors import Unanswered
from unpoison.brokers.rabbitmq.wire import Arrived, Tap, ack_frames
from unpoison.errors import BrokerUnavailable
from unpoison.port.copying.settling import ALL_LET_GO, LetGo, Receipt

LOOKS = 50
MAX_CREDIT = 65535
FULL = 32 * 1024 * 1024
"""Bytes of bodies in the buffer beyond which nothing more is read."""

HOLE_LASTS = 0.05
"""Seconds after which a hole is no longer waited for."""

Ack = tuple[int, bool]
"""A tag, and whether it speaks for all before it."""


class AckRanges:
    """Which acknowledgements of one channel are due. Tags begin with 1.

    A finished stretch without a hole in it takes one cumulative ack. What is finished beyond the first hole is acked one by one,
    in one write, once enough has gathered or the hole has lasted: one slow message does not hold up the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 1
        self._finished: set[int] = set()
        self._singly: set[int] = set()
        self._since = 0.0

    def finish(self, tags: Iterable[int], enough: int) -> list[Ack]:
        """These have ended; returns what is to be acked now. `enough` finished ones beyond a hole do not wait for it."""
        if not self._finished:
            self._since = self._clock()
        self._finished.update(tags)
        acks = self._prefix()
        if self._finished and (len(self._finished) >= enough or self._clock() - self._since >= HOLE_LASTS):
            acks += self.flush()
        return acks

    def flush(self) -> list[Ack]:
        """Ack all that is finished, hole or not."""
        acks = [(tag, False) for tag in sorted(self._finished)]
        self._singly |= self._finished
        self._finished.clear()
        return acks

    @property
    def is_waiting(self) -> bool:
        return bool(self._finished)

    def _prefix(self) -> list[Ack]:
        start = self._next
        finished, singly = self._finished, self._singly
        last = 0
        while True:
            if self._next in finished:
                finished.discard(self._next)
                last = self._next
            elif self._next in singly:
                singly.discard(self._next)
            else:
                break
            self._next += 1
        if last == 0:
            return []
        self._since = self._clock()
        return [(last, last > start)]


class Subscription(Tap):
    """One channel on a queue. With `pauses`, on a connection that nothing else is asked on, its buffer has a limit in bytes.
    `check` raises if this user may no longer consume."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        ring: Callable[[], None] = lambda: None,
        on_arrival: Callable[[], None] = lambda: None,
        on_void: Callable[[], None] = lambda: None,
        *,
        pauses: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._check = check
        self._queue, self._ring, self._on_arrival, self._on_void = queue, ring, on_arrival, on_void
        self.connection, self._pauses = connection, pauses
        self.buffer: deque[Arrived] = deque()
        self.tags: set[int] = set()
        """Of messages that are held."""
        self.alive = True
        self.deleted = False
        self._acks = AckRanges()
        self._lock = threading.Lock()
        self._consumers: list[str] = []
        self._names = count()
        self._credit = 0
        self._bytes_in = self._bytes_out = 0  # each is changed by one thread only
        self._rung = False
        self._timer = False
        self._taken_at = time.monotonic()
        self._channel = connection.channel(self, self._void)
        self._channel.on_cancel(self._void)

    # Called in the connection's thread.

    def arrived(self, message: Arrived) -> None:
        self.buffer.append(message)
        self._bytes_in += len(message.body)
        self._rung = True

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
            if self.tags or self.buffer:
                self._on_void()
            else:
                self._ring()  # nothing is lost

    # Called by the consumer.

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    @property
    def is_full(self) -> bool:
        """Whether so much waits here that nothing more is read, not even an answer."""
        return self._pauses and self._bytes_in - self._bytes_out > FULL

    def want(self, limit: int) -> bool:
        """Have credit for so many beyond those held. True if more had to be asked for."""
        self._taken_at = time.monotonic()
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
        if self.tags or self.buffer:
            self._check()  # a refusal here would end the channel, and all that is held on it would come back
        name = f"unpoison-{next(self._names)}"
        try:
            self._ask(lambda channel, done: channel.basic_qos(prefetch_count=credit, callback=done), "setting the credit")
            self._consumers.append(name)
            self._credit += credit
            self._ask(
                lambda channel, done: channel.basic_consume(self._queue, _never, consumer_tag=name, callback=done), "consuming"
            )
        except Unanswered:
            return False
        return True

    def settle_down(self, limit: int) -> None:
        """Return once what was ready on the server has arrived, up to this limit."""
        with suppress(Unanswered):
            for _ in range(LOOKS):
                ready = self.ready()
                self.ready()  # what the server sent before its first answer is here before its second
                if ready == 0 or len(self.buffer) >= limit or not self.alive:
                    return

    def ready(self) -> int:
        answer = self._ask(lambda channel, done: channel.queue_declare(self._queue, passive=True, callback=done), "counting")
        return int(answer.method.message_count)

    def _ask(self, question: Callable[[Any, Callable[[Any], None]], object], what: str) -> Any:
        """An answer comes after whatever is on its way. While the buffer is full nobody reads that."""
        return self._channel.ask(question, what, unless=lambda: self.is_full)

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
        """Whether messages wait here and nobody has fetched any for so long."""
        return bool(self.buffer) and time.monotonic() - self._taken_at > after

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
        pauses = self._pauses
        self._read_on()
        if self._consumers:
            self.ready()
            self.ready()
        tags, self._consumers, self._credit = self._consumers, [], 0
        for tag in tags:
            self._ask(lambda channel, done, tag=tag: channel.basic_cancel(tag, callback=done), "cancelling")  # type: ignore[misc]
        self._pauses = pauses

    def close(self) -> None:
        """Hold nothing any more; the server has taken back what was not let go when this returns."""
        self._read_on()
        self._flush()
        self.alive = False
        self._channel.close()


def _never(*_: object) -> None:
    raise AssertionError("messages go to the tap of the channel, not through the client")
