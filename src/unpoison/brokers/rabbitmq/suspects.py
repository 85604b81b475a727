"""How is a message that must run alone taken, so that its start is on record?

It is pulled, one at a time, from a queue of its own, and held there while it runs. The server counts for each message how
often it was handed out and came back: in this queue that is how often a start never ended. Nobody looks into it otherwise.
"""

import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.connection import ANSWER_TIMEOUT, IN_USE, Connection, Refused
from unpoison.brokers.rabbitmq.queue_pass import taken_and_put_back
from unpoison.brokers.rabbitmq.topology import Topology, starts_of
from unpoison.brokers.rabbitmq.wire import Arrived, ack_frames, get_frame
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters
from unpoison.port.serialization import UNREADABLE


class SuspectsChannel:
    """One channel on the queue of suspects."""

    def __init__(self, connection: Connection, queue: str, on_arrival: Callable[[], None], on_void: Callable[[], None]) -> None:
        self._queue, self._on_arrival, self._on_void = queue, on_arrival, on_void
        self.held: set[int] = set()
        self.alive = True
        self._answered = threading.Event()
        self._found: Arrived | None = None
        self.kept: Arrived | None = None
        """One that was taken and could not be started."""
        self._channel = connection.channel(self, self._void)

    def take(self) -> Arrived | None:
        """The next one, if there is one."""
        if self.kept is not None and self.alive:
            taken, self.kept = self.kept, None
            return taken
        self._found = None
        self._answered.clear()
        self._channel.send(get_frame(self._channel.number, self._queue))
        if not self._answered.wait(ANSWER_TIMEOUT) or not self.alive:
            refused = self._channel.closed
            self.close()
            if isinstance(refused, Refused) and refused.code:
                raise refused
            raise BrokerUnavailable(f"RabbitMQ did not hand out a message of {self._queue!r}.")
        return self._found

    def keep(self, arrived: Arrived) -> None:
        """Hand this one out again at the next call. Put back, it would be counted as started."""
        self.kept = arrived

    def finish(self, tags: Iterable[int]) -> None:
        tags = list(tags)
        self.held.difference_update(tags)
        self._channel.send(ack_frames(self._channel.number, [(tag, False) for tag in tags]))

    def close(self) -> None:
        self.alive = False
        self._channel.close()

    # Called in the connection's thread.

    def arrived(self, message: Arrived) -> None:
        self._found = message
        self.held.add(message.tag)
        self._on_arrival()
        self._answered.set()

    def nothing_there(self) -> None:
        self._answered.set()

    def drained(self) -> None:
        """Told one by one."""

    def confirmed(self, tag: int, multiple: bool, positive: bool) -> None:
        """Nothing is published on this channel."""

    def returned(self, exchange: str, routing_key: str, why: str) -> None:
        """Nothing is published on this channel."""

    def _void(self) -> None:
        if self.alive:
            self.alive = False
            if self.held:  # else nothing is lost, and others need not lose what they hold
                self._on_void()
        self._answered.set()


# Who started a message that must run alone, and never ended?
#
# The server counts such starts; it does not know whose they were. So each is noted in the queue `<queue>.starts` before it
# begins, and looked up if the message comes back. Nothing is decided by these notes: they are for whoever reads the letter.


LOOKS_FOR_NOTES, LOOK_AGAIN = 10, 0.02
"""How often the notes are looked for, and the seconds in between."""


class Start(msgspec.Struct, frozen=True):
    """One start of one message, alone in its consumer."""

    stamp: str
    by: str
    at: float


def note(source: str, start: Start) -> Copy:
    return Copy("", starts_of(source), properties.write(None, []), msgspec.json.encode(start))


def with_lost_starts(topology: Topology, source: str, stamp: str, counters: Counters, times: int) -> Counters:
    """Counters of a message that was started alone so many times, since it was last stored, and never came to an end."""
    if times < 1:
        return counters
    latest = _noted(topology, source, stamp, times)[-times:]
    counters = msgspec.structs.replace(counters, losses=counters.losses + times - len(latest))
    for start in latest:
        counters = counters.marked(start.by, start.at)
    return counters


def _noted(topology: Topology, source: str, stamp: str, times: int) -> list[Start]:
    """Starts of this message, the latest last. Another consumer may have all notes in hand for a moment."""
    noted: list[Start] = []
    for tries in range(LOOKS_FOR_NOTES):
        if tries:
            time.sleep(LOOK_AGAIN)
        try:
            found = taken_and_put_back(topology.connection, starts_of(source), exclusive=True)
        except Refused as refused:
            if IN_USE in refused.text:
                continue
            return []  # no such queue, or no right to read it: the count of the server holds without notes
        noted = sorted((each for arrived in found if (each := _read(arrived.body)) and each.stamp == stamp), key=_moment)
        if len(noted) >= times:
            break
    return noted


def _moment(start: Start) -> float:
    return start.at


def _read(body: bytes) -> Start | None:
    try:
        return msgspec.json.decode(body, type=Start)
    except UNREADABLE:
        return None
