"""How does a message get from one queue to another, and never into none?

A copy of it is stored, confirmed by the server, and only then may the original be let go. If that is interrupted it is tried
again: a copy that was confirmed before, or is still on its way, is not sent a second time.
"""

from collections.abc import Callable, Sequence
from functools import partial

from unpoison.brokers.rabbitmq import envelope, letters
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.envelope import Envelope, Receipt
from unpoison.brokers.rabbitmq.properties import Properties
from unpoison.brokers.rabbitmq.topology import DLX, suspects_of
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.brokers.rabbitmq.writing import MAKE_AGAIN, Batch, Copy
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Delivery
from unpoison.port.broker import Dead, Kept

LetGo = Callable[[Sequence[Receipt]], None]


class Copies:
    """The copies that one consumer stores. `let_go` lets originals go whose copies are stored."""

    def __init__(self, connections: Connections, let_go: LetGo) -> None:
        self._connections, self._let_go = connections, let_go
        self._sent: dict[Receipt, tuple[Batch, int]] = {}
        self._moved: set[Receipt] = set()
        self._letter_ids: dict[Receipt, str] = {}

    def letter_id(self, receipt: Receipt) -> str | None:
        """The id of the letter that was stored for this message in the settlement that is being carried out."""
        return self._letter_ids.get(receipt)

    def has_moved(self, receipt: Receipt) -> bool:
        """Whether it was let go in an earlier try of the settlement that is being tried again."""
        return receipt in self._moved

    def move(self, kept: Sequence[Kept], dead: Sequence[Dead]) -> None:
        """Have a confirmed copy of each. Raises BrokerUnavailable if one cannot be had; the others are let go then."""
        makers: list[tuple[Receipt, Callable[[], Copy]]] = [
            *((each.delivery.receipt, partial(self._kept_copy, each)) for each in kept),
            *((each.delivery.receipt, partial(self._letter_copy, each)) for each in dead),
        ]
        new = [(receipt, make()) for receipt, make in makers if not self._is_on_its_way(receipt)]
        receipts = [receipt for receipt, _ in makers if receipt not in self._moved]
        try:
            self._store(new, self._notes(kept))
            for batch in {id(self._sent[receipt][0]): self._sent[receipt][0] for receipt in receipts}.values():
                self._connections.writer().wait(batch)
        except BrokerUnavailable:
            self._connections.notes.forget()
            raise
        stored = [receipt for receipt in receipts if self._is_stored(receipt)]
        if len(stored) < len(receipts):
            failed = next(self._sent[receipt][0] for receipt in receipts if not self._is_stored(receipt))
            self._let_go(stored)
            self.forget(stored)
            self._moved.update(stored)
            raise BrokerUnavailable(why_not_stored(failed))

    def _store(self, new: Sequence[tuple[Receipt, Copy]], notes: Sequence[Copy]) -> None:
        """First what goes straight to a queue, then what waits, then letters, each once the former is confirmed: if we may not
        write to one exchange, the server ends the channel, and it is not known what became of all else that was sent. Tried
        again and again, that would be stored each time. (A right to delay is one for all exchanges that do.)"""
        straight: list[tuple[Receipt | None, Copy]] = [(None, note) for note in notes]
        straight += [each for each in new if not each[1].exchange]
        waiting = [each for each in new if each[1].exchange not in ("", DLX)]
        groups = [group for group in (straight, waiting, [each for each in new if each[1].exchange == DLX]) if group]
        writer = self._connections.writer()
        for group in groups:
            batch = writer.submit([copy for _, copy in group])
            self._sent.update((receipt, (batch, number)) for number, (receipt, _) in enumerate(group) if receipt is not None)
            if len(groups) > 1:
                writer.wait(batch)

    def _notes(self, kept: Sequence[Kept]) -> list[Copy]:
        delays: dict[str, float] = {}
        for each in kept:
            delays[each.delivery.source] = max(each.after, delays.get(each.delivery.source, 0.0))
        return self._connections.notes.needed(delays)

    def forget(self, receipts: Sequence[Receipt]) -> None:
        """These were let go."""
        for receipt in receipts:
            self._sent.pop(receipt, None)

    def settled(self) -> None:
        """The settlement has come to its end."""
        self._moved.clear()
        self._letter_ids.clear()

    def _is_stored(self, receipt: Receipt) -> bool:
        batch, number = self._sent[receipt]
        return batch.stored(number)

    def _is_on_its_way(self, receipt: Receipt) -> bool:
        if receipt in self._moved:
            return True
        if receipt not in self._sent:
            return False
        return not self._sent[receipt][0].done.is_set() or self._is_stored(receipt)

    def _kept_copy(self, kept: Kept) -> Copy:
        delivery = kept.delivery
        like, seen = _opened(delivery)
        home = suspects_of(delivery.source) if kept.counters.alone else delivery.source
        where, extra = self._connections.route(home, kept.after)
        return Copy(*where, envelope.copied(seen, like, kept.counters, extra=extra), delivery.body)

    def _letter_copy(self, dead: Dead) -> Copy:
        delivery = dead.delivery
        like, seen = _opened(delivery)
        letter_id = self._letter_ids[delivery.receipt] = letters.new_id(delivery.source)
        data = letters.written(dead.letter, seen, like, letter_id)
        return Copy(DLX, delivery.source, data, delivery.body)


def _opened(delivery: Delivery) -> tuple[Properties, Envelope]:
    receipt: Receipt = delivery.receipt
    return envelope.opened_safely(Arrived(receipt.tag, False, receipt.properties, delivery.body, receipt.route))


def why_not_stored(batch: Batch) -> str:
    if batch.broken is not None:
        return f"The connection broke: {batch.broken}."
    if batch.unroutable:
        (exchange, key), text = next(iter(batch.unroutable.items()))
        place = f"queue {key!r}" if not exchange else f"a queue bound to exchange {exchange!r} with the key {key!r}"
        return f"RabbitMQ cannot route to {place} ({text}): it was deleted, or its binding was. {MAKE_AGAIN}"
    return "RabbitMQ refused to store (basic.nack): the queue is full or unavailable. See its length limits and its log."
