"""Publish messages, and say what became of each.

RabbitMQ confirms messages one by one or in ranges. It closes the channel over a single message that it does not take, and says
neither which one it was nor what became of the others. Those that were not confirmed by then are sent again on a new channel,
under the same ids: all but the culprit, where the server has named its limit, and otherwise one by one.
"""

import re
from collections.abc import Sequence
from functools import partial

from unpoison.brokers.rabbitmq import envelope
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.errors import ACCESS_REFUSED, NOT_FOUND
from unpoison.brokers.rabbitmq.errors import Refused as ChannelClosed
from unpoison.brokers.rabbitmq.names import check_name
from unpoison.brokers.rabbitmq.writing import Batch, Copy, why_not_stored
from unpoison.errors import BrokerUnavailable, ConfigError, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import STORED, Published, Refused, not_sent, without_source

_LIMIT = re.compile(r"message size \d+ .*max size (\d+)")


def publish(connections: Connections, messages: Sequence[Outgoing]) -> Published:
    """Store these; says what became of each. Raises BrokerUnavailable only if nothing was sent."""
    sending = _Publishing(connections, messages)
    sending.refused.update(without_source(messages, partial(_have, connections)))
    for number, message in enumerate(messages):
        if number not in sending.refused:
            sending.prepare(number, message)
    sending.note_delays()
    sending.send(list(sending.copies))
    created = tuple(connections.created)
    connections.created.clear()
    if sending.refused or sending.unknown or created:
        return Published(sending.refused, sending.unknown, created)
    return STORED


def _have(connections: Connections, source: str) -> None:
    """Have the queues of this source. With create=False the server's answer to each message tells whether it exists: a user that
    only publishes may lack the right to look."""
    if not connections.creates:
        check_name(connections.where, source)
        return
    try:
        connections.topology().ensure(source)
    except ChannelClosed as error:
        raise (ConfigError(str(error)) if error.is_forbidden else error) from None


class Sending:
    """Messages on their way, by numbers, with what is known so far about each."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self._most_headers = connections.topology().connection.frame_max - 32
        self.copies: dict[int, Copy] = {}
        self.refused: dict[int, Refused] = {}
        self.unknown: dict[int, str] = {}

    def add(self, number: int, id_: str, copy: Copy) -> None:
        if (size := len(copy.properties)) > self._most_headers:
            told = f"Message {id_!r} has {size:,} bytes of headers; RabbitMQ takes {self._most_headers:,} at most."
            self.refused[number] = Refused(Refusal.TOO_LARGE, told)
        else:
            self.copies[number] = copy

    def send(self, numbers: Sequence[int]) -> None:
        """Have it known of each of these what became of it. Raises BrokerUnavailable only if nothing was sent."""
        if numbers:
            batch, error = self.connections.try_to_store([self.copies[number] for number in numbers])
            if not batch.all_stored:
                self._sort_out(numbers, batch, str(error or ""))

    def _sort_out(self, numbers: Sequence[int], batch: Batch, trouble: str) -> None:
        no_room = Refused(Refusal.NO_ROOM, why_not_stored(batch))
        self.refused.update((numbers[index], no_room) for index in batch.refused)
        left = [numbers[index] for index in sorted(batch.unanswered())]
        if batch.closed is None:
            self.unknown.update(dict.fromkeys(left, trouble))
        else:
            self._send_without_culprits(left, batch.closed)
        if homeless := [number for number in numbers if self.copies[number][:2] in batch.unroutable]:
            self.without_queue(homeless, batch)

    def without_queue(self, numbers: Sequence[int], batch: Batch) -> None:
        """The queues of these are gone."""
        self.refused.update(dict.fromkeys(numbers, Refused(Refusal.NO_SUCH_SOURCE, why_not_stored(batch))))

    def _send_without_culprits(self, left: Sequence[int], closed: ChannelClosed) -> None:
        culprits = left if len(left) == 1 else [number for number in left if _is_culprit(self.copies[number], closed)]
        self.refused.update(dict.fromkeys(culprits, _refused(closed)))
        rest = [number for number in left if number not in self.refused]
        # Where nobody knows which one it was, each is sent by itself.
        for part in [rest] if culprits else [[number] for number in rest]:
            self._send_again(part)

    def _send_again(self, numbers: Sequence[int]) -> None:
        """These may be stored already. Once the server is away, that stays unknown."""
        trouble = next(reversed(self.unknown.values()), "")
        try:
            if not trouble:
                self.send(numbers)
        except BrokerUnavailable as error:
            trouble = str(error)
        if trouble:
            self.unknown.update(dict.fromkeys(numbers, trouble))


class _Publishing(Sending):
    """One call of publish."""

    def __init__(self, connections: Connections, messages: Sequence[Outgoing]) -> None:
        super().__init__(connections)
        self._messages = messages
        self._has_remade = False

    def prepare(self, number: int, message: Outgoing) -> None:
        try:
            where, extra = self.connections.route(message.source, message.delay)
        except (ConfigError, BrokerUnavailable) as error:
            self.refused[number] = not_sent(error)
        else:
            self.add(number, message.id, Copy(*where, envelope.published(message, extra), message.body))

    def note_delays(self) -> None:
        """First, and by themselves: if they are refused, nothing of what is delayed has been sent."""
        delayed = [number for number in self.copies if self._messages[number].delay > 0]
        delays = [(message.source, message.delay) for message in map(self._messages.__getitem__, delayed)]
        try:
            if notes := self.connections.notes.needed(delays):
                self.connections.store(notes)
        except BrokerUnavailable as error:
            for number in delayed:
                del self.copies[number]
                self.refused[number] = not_sent(error)

    def without_queue(self, numbers: Sequence[int], batch: Batch) -> None:
        """Create the queues again, once, and send what was for them again."""
        if self._has_remade or not self.connections.creates:
            super().without_queue(numbers, batch)
            return
        self._has_remade = True
        try:
            self.connections.create_again({self._messages[number].source for number in numbers})
            self.send(numbers)
        except (ConfigError, BrokerUnavailable) as error:
            self.refused.update(dict.fromkeys(numbers, not_sent(error, Refusal.NO_SUCH_SOURCE)))


def _is_culprit(copy: Copy, closed: ChannelClosed) -> bool:
    """Whether the server's words tell that it does not take this one. A right is one for all messages of an exchange."""
    if closed.code == ACCESS_REFUSED:
        return f"'{copy.exchange or 'amq.default'}'" in closed.text
    limit = _LIMIT.search(closed.text)
    return limit is not None and len(copy.body) > int(limit[1])


def _refused(closed: ChannelClosed) -> Refused:
    if closed.code == ACCESS_REFUSED:
        return Refused(Refusal.NOT_PERMITTED, str(closed))
    if closed.code == NOT_FOUND:
        return Refused(Refusal.NO_SUCH_SOURCE, str(closed))
    return Refused(Refusal.TOO_LARGE if _LIMIT.search(closed.text) else Refusal.OTHER, str(closed))
