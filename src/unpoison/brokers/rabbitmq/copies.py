"""Make the copies of retries, releases and dead letters, and send them to be stored.

The rule that a copy is confirmed before its original is let go is in `port.copying.settling`. What is RabbitMQ's own: confirms
come later, in batches. If waiting for a batch is interrupted, a copy that may still be on its way is not sent a second time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from unpoison.brokers.rabbitmq import envelope, letters
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.names import DLX, suspects_of
from unpoison.brokers.rabbitmq.writing import Batch, Copy, why_not_stored
from unpoison.errors import BrokerUnavailable
from unpoison.port.broker import Dead, Kept
from unpoison.port.copying.ids import new_letter_id
from unpoison.port.copying.settling import Item, Receipt, Stored


class _Sent(NamedTuple):
    """A copy that was sent: its batch, its number in there, and the id of a dead letter."""

    batch: Batch
    number: int
    letter_id: str | None

    @property
    def is_stored(self) -> bool:
        return self.batch.stored(self.number)

    @property
    def may_be_stored(self) -> bool:
        return not self.batch.done.is_set() or self.is_stored


class CopyStore:
    """Stores the copies that one consumer settles messages by."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sent: dict[Receipt, _Sent] = {}

    def store(self, items: Sequence[Item]) -> Stored:
        """Returns once it is known of each whether it is stored. Raises BrokerUnavailable if that cannot be found out now."""
        new = [item for item in items if not self._is_on_its_way(item.delivery.receipt)]
        try:
            delays = [(item.delivery.source, item.after) for item in items if isinstance(item, Kept)]
            self._send([(item.delivery.receipt, *self._copy(item)) for item in new], delays)
            for batch in {id(sent.batch): sent.batch for sent in self._of(items)}.values():
                self._connections.writer().wait(batch)
        except BrokerUnavailable:
            self._connections.notes.forget()
            raise
        outcomes = dict(enumerate(self._of(items)))
        for item in items:
            del self._sent[item.delivery.receipt]
        return Stored(
            {number: why_not_stored(sent.batch) for number, sent in outcomes.items() if not sent.is_stored},
            {number: sent.letter_id for number, sent in outcomes.items() if sent.letter_id is not None},
        )

    def forget_lost(self) -> None:
        """Copies of messages that belong to another consumer by now are not waited for."""
        self._sent = {receipt: sent for receipt, sent in self._sent.items() if receipt.holder.held([receipt])}

    def _is_on_its_way(self, receipt: Receipt) -> bool:
        return receipt in self._sent and self._sent[receipt].may_be_stored

    def _of(self, items: Sequence[Item]) -> list[_Sent]:
        return [self._sent[item.delivery.receipt] for item in items]

    def _send(self, new: Sequence[tuple[Receipt, Copy, str | None]], delays: Sequence[tuple[str, float]]) -> None:
        """First what goes straight to a queue, then what waits, then letters, each once the former is confirmed: if this user may
        not write to one exchange, the server closes the channel and does not say what became of all else that was sent. Each
        new try would store that again. (A right to delay is one for all exchanges that do.)"""
        notes: list[tuple[Receipt | None, Copy, str | None]] = [
            (None, note, None) for note in self._connections.notes.needed(delays)
        ]
        straight = [*notes, *(each for each in new if not each[1].exchange)]
        waiting = [each for each in new if each[1].exchange not in ("", DLX)]
        dead = [each for each in new if each[1].exchange == DLX]
        groups = [group for group in (straight, waiting, dead) if group]
        writer = self._connections.writer()
        for group in groups:
            batch = writer.submit([copy for _, copy, _ in group])
            for number, (receipt, _, letter_id) in enumerate(group):
                if receipt is not None:
                    self._sent[receipt] = _Sent(batch, number, letter_id)
            if len(groups) > 1:
                writer.wait(batch)

    def _copy(self, item: Item) -> tuple[Copy, str | None]:
        if isinstance(item, Dead):
            letter_id = new_letter_id(item.delivery.source)
            return letter_copy(item, letter_id), letter_id
        delivery = item.delivery
        queue = suspects_of(delivery.source) if item.counters.alone else delivery.source
        where, extra = self._connections.route(queue, item.after)
        return Copy(*where, envelope.copied(envelope.of_delivery(delivery), item.counters, extra), delivery.body), None


def letter_copy(dead: Dead, letter_id: str) -> Copy:
    delivery = dead.delivery
    data = letters.written(dead.letter, envelope.of_delivery(delivery), letter_id)
    return Copy(DLX, delivery.source, data, delivery.body)
