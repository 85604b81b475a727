"""Look at everything in a queue, and put it back in its order.

A queue cannot be searched: its messages are taken, and put back by ending the channel. Facts about quorum queues that this file
goes by, seen on 3.10 and 4.3:

- A consumer that names no limit gets 2,000 messages and then nothing until it acknowledges. So each one here asks for as many as
  it is to get, and is cancelled once it has them: an acknowledgement would bring it others.
- When a channel ends, what its consumers had comes back one consumer after the other, in the order of their names (up to 32).
- What comes back stands before what was never handed out, but behind what came back before. So a pass that takes only a part
  must take everything that ever came back, or it would change the order.
- A queue that is busy for 250 ms says that it has no messages.
- Of many acknowledgements the server keeps all but the first 32 back until those are stored, and forgets them if the channel ends
  meanwhile (rabbitmq-server issue 10327). To begin a consumer and to end it are commands of the queue too, and the second of them
  is stored after all that was kept back.

A classic queue has none of these, and puts every message where it was. What came into a queue after the pass began is not taken.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.errors import Refused
from unpoison.brokers.rabbitmq.pulled_queue import PulledQueue
from unpoison.brokers.rabbitmq.wire import AckRanges, Arrived, Tap, ack_frames
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.model.wording import counted
from unpoison.port.broker import Progress

CREDIT, MOST_CREDIT, MOST_CONSUMERS = 10_000, 65_535, 20
FIRST_STEP, GROWTH = 64, 8
MOST_STEPS = 4
"""Times that exactly so many messages are taken as were asked for, while those of the times before are still held: each time is a
consumer more that messages come back from."""

STALLED = 30.0
"""Seconds without a message after which the server is taken to send none."""

LOOK_UP = 0.2
"""Seconds between two looks at how far it is."""

QUIET = 2.0
"""Seconds without a message after which it is asked whether there are any left."""

BACK_WITHIN = 10.0
"""Seconds within which the next messages are back in the queue after the channel has ended."""

COUNTS = (b"x-delivery-count", b"x-acquired-count")

Receive = Callable[[Arrived], None]


class QueuePass(Tap):
    """One channel on a queue. `receive` is given each message, in the connection's thread. With `exclusive`, for a queue that is
    known to be small, nobody else consumes from it meanwhile."""

    def __init__(self, connection: Connection, queue: str, receive: Receive, *, exclusive: bool = False) -> None:
        self._connection, self._queue, self._receive, self._exclusive = connection, queue, receive, exclusive
        self.taken = 0
        self._credit = self._consumers = self._finished = 0
        self._wanted = self._steps = 0
        self._early: deque[Arrived] = deque()
        self._came_back = False
        self._acks = AckRanges()
        self._error: Exception | None = None
        self._is_void = False
        self._news = threading.Event()
        self._channel = connection.channel(self, self._void)
        self._channel.on_cancel(self._void)
        self.total = waiting_in(connection, queue)

    def take(self, most: int | None = None, progress: Progress | None = None) -> bool:
        """Return once so many messages are taken, or all that were there when the pass began. True if there are no more.

        More than asked for are taken where the order could not be kept otherwise.
        """
        wanted = self.total if most is None else min(most, self.total)
        if self.taken < wanted:
            self._steps = 0 if self._finished == self.taken else self._steps + 1
            self._take(wanted if self._steps < MOST_STEPS else min(self.total, max(wanted, self.taken * GROWTH)), progress)
        while self.taken < self.total and self._came_back:
            self._take(min(self.total, max(FIRST_STEP, self.taken * GROWTH)), progress)
        return self.taken >= self.total

    def _take(self, wanted: int, progress: Progress | None) -> None:
        while self._early and self.taken < wanted:
            self._keep(self._early.popleft())
        self._credit = self.taken
        self._wanted, names = wanted, []
        while self._credit < wanted:
            names.append(self._consume(min(wanted - self._credit, max(CREDIT, -(-self.total // MOST_CONSUMERS)), MOST_CREDIT)))
        self._wait(progress)
        for name in names:
            self._channel.cancel(name)
        self._wanted = self.taken  # what comes from now on is early

    def _wait(self, progress: Progress | None) -> None:
        taken, since = self.taken, time.monotonic()
        while self.taken < self._wanted:
            self._news.wait(LOOK_UP)
            self._news.clear()
            self._check()
            if self.taken > taken:
                taken, since = self.taken, time.monotonic()
                if progress:
                    progress(taken, self.total)
            elif time.monotonic() - since > QUIET and self._has_no_more(taken):
                self.total = self.taken  # others took some meanwhile, or they were too old
                return
            elif time.monotonic() - since > STALLED:
                raise self._stalled()
        self._check()

    def finish(self, tags: Iterable[int], *, wait: bool = True) -> None:
        """Let these go; the server has done so when this returns, or when the pass is closed."""
        tags = list(tags)
        self._check()
        self._finished += len(tags)
        self._channel.send(ack_frames(self._channel.number, self._acks.finish(tags, enough=1)))
        if wait:
            self._have_stored()
            self._check()

    def _have_stored(self) -> None:
        """Return once the queue has stored every acknowledgement."""
        self._wanted = self.taken  # what comes meanwhile is early
        self._channel.cancel(self._consume(1))
        self._ready()

    def close(self) -> None:
        """Put back what was not let go, and return once it is back: the next look would miss it.

        A server that does not answer is not asked for anything else: the end of the connection puts everything back too.
        """
        if self._is_void or not self._channel.is_open:
            return
        with suppress(UnpoisonError):
            if self._finished:
                self._have_stored()
            self._ready()
            self._channel.close()
            self._wait_for(self.total - self._finished)
            return
        self._connection.hang_up()

    def _wait_for(self, expected: int) -> None:
        channel = self._channel = self._connection.channel()
        try:
            before, since = -1, time.monotonic()
            while (ready := self._ready()) < expected and time.monotonic() - since < BACK_WITHIN:
                if ready > before:
                    before, since = ready, time.monotonic()
                time.sleep(LOOK_UP / 20)
        finally:
            channel.close()

    def _consume(self, credit: int) -> str:
        name = f"unpoison-{self._consumers:06}"
        self._channel.set_credit(credit)
        self._channel.consume(self._queue, consumer_tag=name, exclusive=self._exclusive)
        self._consumers += 1
        self._credit += credit
        return name

    def _has_no_more(self, taken: int) -> bool:
        """Whether nothing is left there, and nothing on its way: what was sent before an answer is here before it."""
        try:
            return waiting_in(self._connection, self._queue) == 0 and self._ready() == 0 and self.taken == taken
        except Refused:
            raise
        except BrokerUnavailable as silent:
            self._check()
            raise self._stalled() from silent

    def _ready(self) -> int:
        return self._channel.ready(self._queue)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_void:
            why = self._channel.closed or Refused(0, "the server ended the consumer: a timeout, or the queue was deleted")
            raise BrokerUnavailable(
                f"RabbitMQ took back the messages of {self._queue!r} while they were looked at ({why.text}). They are in the "
                f"queue, and nothing that was not said to be done is done. Try again."
            )

    def _stalled(self) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"RabbitMQ has handed out {self.taken:,} of {counted(self.total, 'message')} of {self._queue!r} and no more for "
            f"{STALLED:g} s. They go back into the queue. Look for other consumers of this queue and for alarms (rabbitmqctl "
            f"list_consumers, rabbitmq-diagnostics alarms), then try again."
        )

    # Called in the connection's thread.

    def arrived(self, message: Arrived) -> None:
        if self._error is not None:
            return
        if self.taken < self._wanted:
            self._keep(message)
            if self.taken >= self._wanted:
                self._news.set()
        elif self.taken + len(self._early) < self.total:  # it came for one that was let go, and is the next to be taken
            self._early.append(message)

    def _keep(self, message: Arrived) -> None:
        try:
            self._receive(message)
        except Exception as error:  # `take` raises it: here it would end the connection
            self._error = error
            self._news.set()
        # Only quorum queues count how often a message came back.
        self._came_back = message.redelivered and any(name in message.properties for name in COUNTS)
        self.taken += 1

    def _void(self) -> None:
        self._is_void = True
        self._news.set()


def waiting_in(connection: Connection, queue: str) -> int:
    """How many messages are ready in a queue. None is only believed if asking for one finds none."""
    channel, ends = connection.channel(), time.monotonic() + STALLED
    try:
        while (ready := channel.ready(queue)) == 0 and _has_first(connection, queue):
            if time.monotonic() > ends:
                raise BrokerUnavailable(
                    f"RabbitMQ has not counted the messages of {queue!r} for {STALLED:g} s: it is overloaded, or the queue has "
                    f"no leader (rabbitmq-queues quorum_status). Try again later."
                )
            time.sleep(LOOK_UP)
    finally:
        channel.close()
    return ready


def _has_first(connection: Connection, queue: str) -> bool:
    """Whether there is a message to take. It stays where it is."""
    first = PulledQueue(connection, queue)
    try:
        return first.take() is not None
    finally:
        if first.alive:  # else it is closed already, and a server that does not answer would be waited for twice
            first.close()


def taken_and_put_back(connection: Connection, queue: str) -> list[Arrived]:
    """Everything in a queue that is known to be small. It stays there. Raises Refused if it is `IN_USE`."""
    found: list[Arrived] = []
    looking = QueuePass(connection, queue, found.append, exclusive=True)
    try:
        looking.take()
    finally:
        looking.close()
    return found
