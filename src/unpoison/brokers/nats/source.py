"""Take the messages of one source, from three durable consumers: the source itself, what is to be started again, and letters that
were replayed."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from unpoison.brokers.nats import envelope, letters
from unpoison.brokers.nats.client import Client
from unpoison.brokers.nats.delays import Mover
from unpoison.brokers.nats.envelope import Arrived, Seen, place
from unpoison.brokers.nats.subscription import Subscription
from unpoison.brokers.nats.suspects import Suspects
from unpoison.model.message import Counters, Delivery
from unpoison.port import serialization
from unpoison.port.copying.settling import Receipt
from unpoison.port.reading import read_all
from unpoison.port.takeovers import CameBack

log = logging.getLogger("unpoison")

FOREIGN_ATTEMPTS = (
    "Source %r: message %r has a header x-delivery-attempts that unpoison did not write (there is no x-unpoison-stamp). It does "
    "not count: the message starts as a new one, and its handler sees the header."
)


class Source:
    """One source, as far as this process consumes it."""

    def __init__(self, name: str, client: Client, ring: Callable[[], None]) -> None:
        self.name = name
        topic = client.topic(name)
        self.work, self.again, self.replays = (
            Subscription(*at, client.connection, ring) for at in (topic.work, topic.again, topic.replays)
        )
        self.suspects = Suspects(topic, client, ring)
        self.came_back, self.moved_back = CameBack(), CameBack(tell=serialization.tell)
        self._told_foreign = False
        self.filled: set[Subscription] = set()
        """Where we have stored something ourselves since we last looked."""
        self.promised = min(at.ack_wait for at in (topic.work, topic.again, topic.replays, topic.suspects))
        self._mover: Mover | None = None
        if topic.later is not None:
            rung = threading.Event()
            later = Subscription(*topic.later, client.connection, rung.set)
            targets = (topic.names.again, topic.names.suspects)
            self._mover = Mover(later, client.store, lambda: client.now(topic), rung, targets)

    @property
    def pulled(self) -> tuple[Subscription, ...]:
        return self.work, self.again, self.replays

    @property
    def _all(self) -> tuple[Subscription, ...]:
        return *self.pulled, self.suspects.subscription

    @property
    def is_late(self) -> bool:
        return any(each.leases.is_late for each in self._all)

    def is_left_alone(self, after: float) -> bool:
        return any(each.is_left_alone(min(after, self.work.leases.lasts / 2)) for each in self.pulled)

    def fetch(self, limit: int) -> list[Delivery]:
        """Some of those that came by themselves, then what is ready: new ones first, and retries if there is room."""
        deliveries: list[Delivery] = []
        for each in (self.replays, self.again):
            deliveries += self._admitted(each, each.take(max(1, (limit - len(deliveries)) // 2)))
        deliveries += self._pulled(self.work, limit - len(deliveries))
        for each in (self.again, self.replays):
            if len(deliveries) < limit and (each in self.filled or not each.is_listening):
                deliveries += self._pulled(each, limit - len(deliveries))
        for each in self.pulled if len(deliveries) < limit else (self.again, self.replays):
            each.listen()
        self.came_back.tell_due()
        self.moved_back.tell_due()
        return deliveries

    def _pulled(self, pulled: Subscription, room: int) -> list[Delivery]:
        """What is ready there; for certain what we have stored there ourselves."""
        if len(pulled.buffer) < room:
            pulled.wait(pulled.ask(room - len(pulled.buffer)))
        if pulled in self.filled:
            self.filled.discard(pulled)
            if not pulled.buffer:
                pulled.listen_closely()
                return self._pulled(pulled, room)
        return self._admitted(pulled, pulled.take(room))

    def _admitted(self, holder: Subscription, arrived: Sequence[Arrived]) -> list[Delivery]:
        together, one = partial(self._deliveries, holder), partial(self._delivery, holder)
        return read_all(arrived, together, one, partial(envelope.not_read, self.name, holder))

    def _deliveries(self, holder: Subscription, arrived: Sequence[Arrived]) -> list[Delivery]:
        plain, is_plain, is_first = envelope.plain, envelope.is_plain, envelope.is_first
        return [
            plain(self.name, each, holder) if is_plain(each.block) and is_first(each.reply) else self._delivery(holder, each)
            for each in arrived
        ]

    def _delivery(self, holder: Subscription, arrived: Arrived) -> Delivery:
        where = place(arrived.reply)
        seen = envelope.look(arrived.block, where)
        counters = envelope.returned(self._counters(holder, arrived.block, seen), where.delivered)
        self.came_back.note(self.name, int(where.delivered > 1))
        receipt = Receipt(holder, arrived.reply, arrived.block)
        return Delivery(receipt, self.name, seen.id, arrived.body, seen.key, seen.headers, counters)

    def _counters(self, holder: Subscription, block: bytes, seen: Seen) -> Counters:
        """Those of a dead letter that another program has published to the source again are the ones of a replay."""
        if holder is self.work and (record := letters.record_of(block)) is not None:
            self.moved_back.note(self.name)
            return serialization.restarted(record, seen.counters.replays)
        if not self._told_foreign and envelope.has_foreign_attempts(block):
            self._told_foreign = True  # once for each source: a program that writes it does so on every message
            log.warning(FOREIGN_ATTEMPTS, self.name, seen.id, extra={"event": "foreign-attempts", "source": self.name})
        return seen.counters

    def verify(self) -> None:
        for each in self._all:
            each.verify()

    def renew(self) -> None:
        for each in self._all:
            each.verify()
            each.renew()
        self.suspects.show()

    def stop_listening(self) -> None:
        """What we hand back goes there."""
        self.again.cancel()

    def unfetched(self) -> Iterator[list[Delivery]]:
        for each in self.pulled:
            each.cancel()
        yield [delivery for each in self.pulled for delivery in self._admitted(each, each.take(len(each.buffer)))]

    def give_up(self) -> None:
        for each in self._all:
            each.give_up()

    def close(self) -> None:
        if self._mover is not None:
            self._mover.close()
