"""Keep all of a letter outside of its DLQ, and send its message back from there.

What is kept is what stands beside the body, as the server has it, and the body itself where the letter is inside of it. So a
message is sent back just as it is sent again from the DLQ, but for the history: that has nothing to tell of a letter which is
elsewhere.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import msgspec

from unpoison.brokers.rabbitmq import letters, properties
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.errors import SourceDeleted
from unpoison.brokers.rabbitmq.letters import SentBack
from unpoison.brokers.rabbitmq.names import suspects_of
from unpoison.brokers.rabbitmq.publishing import Sending
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.brokers.rabbitmq.writing import Batch, Copy
from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import STORED, Published, Refused, not_sent
from unpoison.port.copying.dlq_index import portions
from unpoison.port.foreign.dlq import without_origin
from unpoison.port.reading import read_one

LONGEST_QUEUE = 255
"""Bytes of its name. A letter may name any other, which is none."""

_read_native = msgspec.msgpack.Decoder(tuple[bytes, bytes | None]).decode


def whole_letter(source: str, arrived: Arrived, shown: DeadLetter | None = None) -> WholeLetter:
    """A letter with all that `send_back` needs, as it is `shown`. Never raises."""
    letter = shown or letters.read(source, arrived).letter
    headers = read_one(arrived, lambda arrived: properties.shown(properties.read(arrived.properties).headers), lambda *_: ())
    body = None if letter.body == arrived.body else arrived.body
    return WholeLetter(letter=letter, headers=headers, native=msgspec.msgpack.encode((arrived.properties, body)))


class Origins:
    """The queues that letters go back to: what is sent where there is none would be nowhere."""

    def __init__(self, connections: Connections, source: str) -> None:
        self._connections, self._source = connections, source
        self._there: dict[str, bool] = {}

    def have_source(self) -> None:
        """Have the queues of the source itself."""
        if self._source in self._there:
            return
        topology = self._connections.topology()
        topology.renew(self._source)
        queues = (self._source, suspects_of(self._source))
        if not all(map(topology.is_there, queues)):
            raise topology.deleted(self._source)
        self._there.update(dict.fromkeys(queues, True))

    def has(self, queue: str) -> bool:
        if queue not in self._there:
            self._there[queue] = self._connections.topology().is_there(queue)
        return self._there[queue]


def send_back(connections: Connections, source: str, letters: Sequence[WholeLetter]) -> Published:
    """Send their messages; says what became of each. Raises BrokerUnavailable only if nothing was sent."""
    return _sent(_SendingBack(connections, source, lambda _: source), letters) if letters else STORED


def send_back_each(
    connections: Connections, dlq: str, letters: Sequence[WholeLetter], source_of: Callable[[Arrived], str]
) -> Published:
    """The same of letters of several sources. `dlq` is what one is told to be of that says of no source."""
    if not letters:
        return STORED
    return _sent(_SendingBack(connections, dlq, source_of, has_source=False), letters)


def _sent(sending: "_SendingBack", letters: Sequence[WholeLetter]) -> Published:
    for number, whole in enumerate(letters):
        sending.prepare(number, whole)
    for part in portions(list(sending.copies), size_of=sending.size):
        sending.send_part(part)
    return Published(sending.refused, sending.unknown) if sending.refused or sending.unknown else STORED


class _SendingBack(Sending):
    """One call of it. Nothing is sent before it is known of each letter where it goes."""

    def __init__(
        self, connections: Connections, source: str, source_of: Callable[[Arrived], str], *, has_source: bool = True
    ) -> None:
        super().__init__(connections)
        self._source, self._source_of, self._has_source = source, source_of, has_source
        self._has_begun = False

    def prepare(self, number: int, whole: WholeLetter) -> None:
        made = read_one(whole, partial(_made, self._source_of), _cannot_be_read)
        if isinstance(made, SentBack):
            refused = self._without_origin(whole, made.queue)
            if refused is None:
                self.add(number, whole.letter.message.id, Copy("", *made))
                return
            made = refused
        self.refused[number] = made

    def _without_origin(self, whole: WholeLetter, queue: str) -> Refused | None:
        """Of another queue than its own the server says whether it is there, when something is sent to it."""
        if not self._has_source:
            return not_sent(without_origin(whole.letter.id)) if queue == self._source else None
        if queue in (self._source, suspects_of(self._source)):
            return self._without_source
        return _gone(queue) if len(queue.encode()) > LONGEST_QUEUE else None

    @cached_property
    def _without_source(self) -> Refused | None:
        try:
            Origins(self.connections, self._source).have_source()
        except SourceDeleted as deleted:
            return not_sent(deleted, Refusal.NO_SUCH_SOURCE)
        return None

    def size(self, number: int) -> int:
        return len(self.copies[number].properties) + len(self.copies[number].body)

    def send_part(self, numbers: Sequence[int]) -> None:
        """Once there was no answer no more is sent: it would be waited for in vain, and nobody would know what became of it."""
        try:
            if why := next(iter(self.unknown.values()), None):
                raise BrokerUnavailable(f"It was not sent, since there was no answer for one before it: {why}")
            self.send(numbers)
        except BrokerUnavailable as error:
            if not self._has_begun:
                raise
            self.refused.update(dict.fromkeys(numbers, not_sent(error)))
        self._has_begun = True

    def without_queue(self, numbers: Sequence[int], batch: Batch) -> None:
        self.refused.update((number, _gone(self.copies[number].routing_key)) for number in numbers)


def _made(source_of: Callable[[Arrived], str], whole: WholeLetter) -> SentBack:
    """May raise."""
    native, body = _read_native(whole.native or b"")
    if not properties.is_sound(native):
        raise ValueError("its properties are not whole")
    arrived = Arrived(0, False, native, whole.letter.body if body is None else body)
    return letters.sent_back(source_of(arrived), arrived, whole.letter.id)


def _cannot_be_read(whole: WholeLetter, error: Exception) -> Refused:
    return Refused(
        Refusal.UNFIT,
        f"Letter {whole.letter.id!r} cannot be sent back: what was stored with it for RabbitMQ cannot be read ({error}). It was "
        f"changed in the store, or comes from another broker. Publish its body as a new message.",
    )


def _gone(queue: str) -> Refused:
    return Refused(
        Refusal.NO_SUCH_SOURCE,
        f"It came from queue {queue!r}, which does not exist any more. Create the queue and send it back again.",
    )
