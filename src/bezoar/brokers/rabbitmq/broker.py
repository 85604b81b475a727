"""How does RabbitMQ serve as a broker?

Three connections: one on which messages are pushed here, to wait in a buffer until they are fetched; one to ask the server
and to pull suspects, since an answer must not wait behind a gigabyte of messages; one to publish, since a server that is short
of memory reads nothing from whoever publishes. Retries, releases and dead letters are copies that the server has confirmed
before the original is acknowledged. So whatever is killed in between, here or there, a message may be there twice for a moment
and is never lost.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from bezoar.brokers.rabbitmq import envelope, letters, properties, starts
from bezoar.brokers.rabbitmq.connection import Link, Refused
from bezoar.brokers.rabbitmq.consuming import Subscription
from bezoar.brokers.rabbitmq.envelope import FLAGGED, Receipt
from bezoar.brokers.rabbitmq.ladder import Ladder, way
from bezoar.brokers.rabbitmq.lane import Lane
from bezoar.brokers.rabbitmq.presence import Presence
from bezoar.brokers.rabbitmq.table import Entry
from bezoar.brokers.rabbitmq.topology import DLX, NOT_FOUND, Topology, busy_of, dlq_of, lane_of
from bezoar.brokers.rabbitmq.url import address
from bezoar.brokers.rabbitmq.wire import Arrived
from bezoar.brokers.rabbitmq.writing import Batch, Copy, Writer
from bezoar.errors import BezoarError, BrokerUnavailable, OwnershipLost, PayloadError
from bezoar.message import Counters, Delivery, Outgoing
from bezoar.ports import Capability, Dead, Depth, Finding, Kept, Ring, Settlement

GIVE_BACK_AFTER = 2.0
"""Seconds that a message waits here unfetched before others may have it."""

TICK = 0.25
"""Seconds between two looks at what waits here unfetched."""

REMAKE_AFTER = 1.0
"""Seconds between noticing that a queue was deleted and making it anew."""

LOOK_AGAIN = 0.1
"""Seconds between two looks before a source is called empty: a message on its way from one delay to the next is in no count."""


class RabbitMQBroker:
    """One user of the server."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.FENCED | Capability.BROWSE

    def __init__(self, url: str) -> None:
        self._address = address(url)
        self._lock = threading.RLock()
        self._create = True
        self._ring: Ring = lambda: None
        self._is_open = False
        self._link: Link | None = None
        self._pushing: Link | None = None
        self._topology: Topology | None = None
        self._ladder: Ladder | None = None
        self._writer: Writer | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._lanes: dict[str, Lane] = {}
        self._presences: dict[str, Presence] = {}
        self._known: set[str] = set()
        self._deleted: dict[str, float] = {}
        self._sent: dict[Receipt, tuple[Batch, int]] = {}
        self._finished: set[Receipt] = set()

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self._create, self._is_open = create, True
        self._ring = ring or self._ring
        try:
            findings = [finding for source in sources for finding in self.topology().ensure(source)]
            self.writer()  # now, and not with the first dead letter
        except BaseException:
            self.close()
            raise
        return findings

    def ties(self) -> Sequence[int]:
        """While a worker lives, the server does not hand its messages to others, even if the consumer is gone."""
        found = [link.descriptor() for link in (self._pushing, self._link) if link is not None]
        return [descriptor for descriptor in found if descriptor is not None]

    def publish(self, messages: Sequence[Outgoing]) -> None:
        for source in {message.source for message in messages}:
            self.topology().ensure(source)
        copies = [self._outgoing(message) for message in messages]
        for last_try in (False, True):
            batch = self.store(copies)
            failed = [number for number in range(len(copies)) if not batch.stored(number)]
            if not failed:
                return
            if last_try or not batch.unroutable:
                raise BrokerUnavailable(
                    f"RabbitMQ refused {len(failed)} of {len(copies)} messages; the others are stored. {why(batch)}"
                )
            copies = [copies[number] for number in failed]
            self._remake({message.source for message in messages})

    def _remake(self, sources: Iterable[str]) -> None:
        """Somebody deleted a queue: it is made anew unless that is not wanted, and not too soon.

        RabbitMQ 3.10 mixes up a quorum queue with the one of the same name that it is still deleting: channels that know the
        old one never hear of the new one.
        """
        time.sleep(REMAKE_AFTER)
        self.writer().renew()
        for source in sources:
            self.topology().renew(source)

    def _outgoing(self, message: Outgoing) -> Copy:
        where, extra = self._route(message.source, message.delay)
        data = envelope.published(message, extra)
        limit = self.topology().link.frame_max
        if len(data) + 32 > limit:
            raise PayloadError(
                f"Message {message.id!r} has {len(data):,} bytes of headers; RabbitMQ takes {limit - 32:,} at most."
            )
        return Copy(*where, data, message.body)

    def _route(self, queue: str, delay: float) -> tuple[tuple[str, str], list[Entry]]:
        """Exchange and routing key for a message that is to be in this queue after so long, and the headers for the way."""
        if delay <= 0:
            return ("", queue), []
        down = way(delay)
        self.ladder().ensure(down.level)
        return (down.exchange, queue), down.headers

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self._lock:
            subscription = self._subscription(source)
            try:
                return self._fetch(source, subscription, limit) if limit > 0 else ()
            except Refused as refused:
                raise self._queue_deleted(source) if refused.code == NOT_FOUND else refused from None

    def _fetch(self, source: str, subscription: Subscription, limit: int) -> Sequence[Delivery]:
        while True:
            grew = subscription.want(limit)
            if (grew and len(subscription.buffer) < limit) or not (subscription.buffer or subscription.held):
                subscription.settle_down(limit)
            arrived = subscription.take(limit)
            deliveries = self._admitted(source, subscription, arrived)
            if deliveries or not arrived:
                return deliveries

    def has_suspect(self, source: str) -> bool:
        with self._lock:
            return self.topology().count(lane_of(source))[0] > 0

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self._lock:
            lane = self._lane(source)
            arrived = lane.take()
            if arrived is None:
                return None
            seen = envelope.look(arrived, properties.read(arrived.properties))
            stamp, losses = seen.stamp or seen.id, 1 if seen.returns == FLAGGED else seen.returns
            counters = msgspec.structs.replace(seen.counters, alone=True)
            try:
                counters = starts.lost(self.topology(), source, stamp, counters, losses)
                self.store([starts.note(source, starts.Start(stamp, by, time.time()))])
            except BaseException:
                lane.close()  # it goes back; the server counts a start that never was, which errs on the side of caution
                raise
            receipt = Receipt(lane, arrived.tag, arrived.properties)
            return Delivery(receipt, source, seen.id, arrived.body, seen.key, seen.headers, counters)

    def settle(self, settlement: Settlement) -> None:
        with self._lock:
            kept = [each for each in settlement.kept if self._holds(each.delivery)]
            dead = [each for each in settlement.dead if self._holds(each.delivery)]
            gone = [each for each in settlement.gone if self._holds(each)]
            moved = [*(each.delivery for each in kept), *(each.delivery for each in dead)]
            if moved:
                self._stop_consuming(kept)
                self._store(kept, dead)
            self._finish([each.receipt for each in (*gone, *moved)])
            self._finished.clear()
            asked = len(settlement.gone) + len(settlement.kept) + len(settlement.dead)
            if len(gone) + len(moved) < asked:
                raise self._told_lost()

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            if not all(map(self._holds, deliveries)):
                raise self._told_lost()

    def depth(self, source: str) -> Depth:
        with self._lock:
            depth = self._depth(source)
            if depth.empty:
                time.sleep(LOOK_AGAIN)
                depth = self._depth(source)
            return depth

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            if self._pushing is not None and self._pushing.is_open:
                with suppress(BezoarError):
                    self._give_back()
            self._hang_up()
            for link in (self._pushing, self._link, self._writer):
                if link is not None:
                    link.close()
            self._link = self._pushing = self._topology = self._ladder = self._writer = None
            self._known = set()

    def _hang_up(self) -> None:
        """Hold nothing any more: the server hands out again whatever was held."""
        channels: list[Subscription | Lane] = [*self._subscriptions.values(), *self._lanes.values()]
        self._subscriptions, self._lanes = {}, {}
        for channel in channels:
            with suppress(BezoarError):
                channel.close()

    def topology(self) -> Topology:
        with self._lock:
            if not self._is_open:
                raise BrokerUnavailable(f"The connection to {self._address.shown} is not open. Call open() first.")
            if self._link is None or not self._link.is_open or self._topology is None:
                self._link = Link(self._address, "control", self._part_lost)
                self._topology = Topology(
                    self._link, create=self._create, message_ttl=self._address.message_ttl, known=self._known
                )
                self._ladder = None
            return self._topology

    def _pushed(self) -> Link:
        if self._pushing is None or not self._pushing.is_open:
            self._presences = {}
            self._pushing = link = Link(self._address, "consumer", self._part_lost)
            link.later(TICK, lambda: self._tick(link))
        return self._pushing

    def _part_lost(self) -> None:
        """Something that was held here is lost, and whoever is told of that drops everything: so let everything go back."""
        for link in (self._pushing, self._link):
            if link is not None and link.is_open:
                link.hang_up()
        self._ring()

    def ladder(self) -> Ladder:
        topology = self.topology()
        if self._ladder is None:
            self._ladder = Ladder(topology)
        return self._ladder

    def store(self, copies: Sequence[Copy]) -> Batch:
        """Store these; returns once it is known of each whether it is stored."""
        writer = self.writer()
        batch = writer.submit(copies)
        writer.wait(batch)
        return batch

    def writer(self) -> Writer:
        with self._lock:
            if self._writer is None or not self._writer.link.is_open:
                self._writer = Writer(Link(self._address, "publisher"))
            return self._writer

    def _subscription(self, source: str) -> Subscription:
        """The channel of this source. Raises OwnershipLost once if one that held messages has ended."""
        old = self._subscriptions.get(source)
        if old is not None and old.alive:
            return old
        lane = self._lanes.get(source)
        if (old is not None and old.held) or (lane is not None and not lane.alive and lane.held):
            raise self._told_lost()
        if old is not None:
            old.close()
        topology = self.topology()
        if source in self._deleted and time.monotonic() > self._deleted.pop(source):
            self._remake([source])
        elif not topology.has(source):
            raise self._queue_deleted(source)
        presence = self._presence(source)
        made = Subscription(self._pushed(), source, self._ring, presence.mark, self._part_lost, pauses=True)
        self._subscriptions[source] = made
        return made

    def _queue_deleted(self, source: str) -> BrokerUnavailable:
        self._deleted[source] = time.monotonic() + REMAKE_AFTER
        return BrokerUnavailable(
            f"Queue {source!r} was deleted, with all that was in it. It is made anew at one of the next tries."
        )

    def _presence(self, source: str) -> Presence:
        link = self._pushed()
        if source not in self._presences:
            self.topology().ensure(source)
            self._presences[source] = Presence(link, busy_of(source))
        return self._presences[source]

    def _tick(self, link: Link) -> None:
        """Now and then, in the connection's thread: take marks away that no longer hold, and give back what nobody fetches."""
        if not link.is_open or link is not self._pushing:
            return
        link.wire.stay_alive()
        self._unmark_idle()
        if any(each.alive and each.is_left_alone(GIVE_BACK_AFTER) for each in list(self._subscriptions.values())):
            threading.Thread(target=self._give_back_unfetched, name="bezoar-rabbitmq-giving-back", daemon=True).start()
        link.later(TICK, lambda: self._tick(link))

    def _unmark_idle(self) -> None:
        for source, presence in list(self._presences.items()):
            if not self._is_holding(source):
                presence.unmark()

    def _is_holding(self, source: str) -> bool:
        holders = (self._subscriptions.get(source), self._lanes.get(source))
        return any(each is not None and each.alive and (each.held or getattr(each, "buffer", ())) for each in holders)

    def _give_back_unfetched(self) -> None:
        with suppress(BezoarError), self._lock:
            self._give_back(left_alone=GIVE_BACK_AFTER)

    def _told_lost(self) -> OwnershipLost:
        """Told once; the next fetch starts anew."""
        self._subscriptions = {source: each for source, each in self._subscriptions.items() if each.alive}
        self._lanes = {source: each for source, each in self._lanes.items() if each.alive}
        return OwnershipLost(
            "RabbitMQ took back the messages that this consumer held: its connection or channel ended. "
            "Its results are dropped; the messages are delivered again."
        )

    def _lane(self, source: str) -> Lane:
        lane = self._lanes.get(source)
        if lane is None or not lane.alive:
            topology = self.topology()
            topology.ensure(source)
            self._lanes[source] = lane = Lane(topology.link, lane_of(source), self._presence(source).mark_soon, self._part_lost)
        return lane

    def _admitted(self, source: str, subscription: Subscription, arrived: Sequence[Arrived]) -> list[Delivery]:
        """Deliveries. What came back flagged and uncounted, or has to wait longer, is stored anew first and comes again."""
        plain, is_plain = envelope.plain, envelope.is_plain
        deliveries: list[Delivery] = []
        again: list[tuple[Arrived, Copy]] = []
        for message in arrived:
            if not message.redelivered and is_plain(message.properties):
                deliveries.append(plain(source, message, subscription))
                continue
            like = properties.read(message.properties)
            seen = envelope.look(message, like)
            counters = _returned(seen.counters, seen.returns)
            if seen.wait > 0 or (seen.returns == FLAGGED and seen.counters.unseen == 0 and not seen.counters.alone):
                where, extra = self._route(source, seen.wait)
                again.append((message, Copy(*where, envelope.copied(seen, like, counters, extra=extra), message.body)))
            else:
                receipt = Receipt(subscription, message.tag, message.properties)
                deliveries.append(Delivery(receipt, source, seen.id, message.body, seen.key, seen.headers, counters))
        if again:
            self._store_anew(subscription, again)
        return deliveries

    def _store_anew(self, subscription: Subscription, again: Sequence[tuple[Arrived, Copy]]) -> None:
        batch = self.store([copy for _, copy in again])
        stored = [message.tag for number, (message, _) in enumerate(again) if batch.stored(number)]
        subscription.finish(stored)
        if len(stored) < len(again):
            raise BrokerUnavailable(f"RabbitMQ refused copies of {len(again) - len(stored)} messages. {why(batch)}")

    def _store(self, kept: Sequence[Kept], dead: Sequence[Dead]) -> None:
        """Have a confirmed copy of each. One that was confirmed before, or is still on its way, is not sent again."""
        makers: list[tuple[Receipt, Callable[[], Copy]]] = [
            *((each.delivery.receipt, partial(self._kept_copy, each)) for each in kept),
            *((each.delivery.receipt, partial(self._letter_copy, each)) for each in dead),
        ]
        writer = self.writer()
        new = [(receipt, make()) for receipt, make in makers if not self._is_on_its_way(receipt)]
        if new:
            batch = writer.submit([copy for _, copy in new])
            self._sent.update((receipt, (batch, number)) for number, (receipt, _) in enumerate(new))
        receipts = [receipt for receipt, _ in makers if receipt not in self._finished]
        for batch in {id(self._sent[receipt][0]): self._sent[receipt][0] for receipt in receipts}.values():
            writer.wait(batch)
        stored = [receipt for receipt in receipts if self._sent[receipt][0].stored(self._sent[receipt][1])]
        if len(stored) < len(receipts):
            failed = next(self._sent[receipt][0] for receipt in receipts if receipt not in set(stored))
            self._finish(stored)  # what could be stored is not stored again, whatever becomes of the rest
            self._finished.update(stored)
            raise BrokerUnavailable(why(failed))

    def _stop_consuming(self, kept: Sequence[Kept]) -> None:
        """What is handed back is for others: it would come straight to us again while we have credit."""
        back = [each for each in kept if not each.after and each.counters.attempts == each.delivery.counters.attempts]
        for source in {each.delivery.source for each in back}:
            if source in self._subscriptions and self._subscriptions[source].alive:
                with suppress(Refused):  # its queue is gone: nothing will come from there
                    self._subscriptions[source].cancel()

    def _is_on_its_way(self, receipt: Receipt) -> bool:
        if receipt in self._finished:
            return True
        if receipt not in self._sent:
            return False
        batch, number = self._sent[receipt]
        return not batch.done.is_set() or batch.stored(number)

    def _kept_copy(self, kept: Kept) -> Copy:
        delivery = kept.delivery
        like = properties.read(delivery.receipt.properties)
        seen = envelope.look(Arrived(0, False, b"", delivery.body), like)
        home = lane_of(delivery.source) if kept.counters.alone else delivery.source
        where, extra = self._route(home, kept.after)
        return Copy(*where, envelope.copied(seen, like, kept.counters, extra=extra), delivery.body)

    def _letter_copy(self, dead: Dead) -> Copy:
        delivery = dead.delivery
        like = properties.read(delivery.receipt.properties)
        seen = envelope.look(Arrived(0, False, b"", delivery.body), like)
        data = letters.written(dead.letter, seen, like, letters.new_id(delivery.source))
        return Copy(DLX, delivery.source, data, delivery.body)

    def _holds(self, delivery: Delivery) -> bool:
        receipt: Receipt = delivery.receipt
        return receipt in self._finished or (receipt.holder.alive and receipt.tag in receipt.holder.held)

    def _finish(self, receipts: Iterable[Receipt]) -> None:
        by_holder: dict[int, list[Receipt]] = {}
        for receipt in receipts:
            if receipt not in self._finished:
                by_holder.setdefault(id(receipt.holder), []).append(receipt)
                self._sent.pop(receipt, None)
        for group in by_holder.values():
            group[0].holder.finish([receipt.tag for receipt in group])
        if self._pushing is not None and not any(map(self._is_holding, self._presences)):
            self._pushing.post(self._unmark_idle)

    def _give_back(self, left_alone: float = 0.0) -> None:
        """Have others get what waits here, as it was: a plain return would be counted against messages that never started."""
        for source, subscription in self._subscriptions.items():
            if not subscription.alive or (left_alone and not subscription.is_left_alone(left_alone)):
                continue
            subscription.cancel()
            waiting = self._admitted(source, subscription, subscription.take(len(subscription.buffer)))
            self.settle(Settlement(kept=[Kept(delivery, delivery.counters) for delivery in waiting]))

    def _depth(self, source: str) -> Depth:
        topology = self.topology()
        topology.ensure(source)
        own = self._subscriptions.get(source)
        held = 0 if own is None else len(own.held)
        held += len(self._lanes[source].held) if source in self._lanes else 0
        delayed = self.ladder().waiting()
        suspects, _ = topology.count(lane_of(source))
        ready, _ = topology.count(source)
        here = 0 if own is None else len(own.buffer)
        busy = topology.count(busy_of(source))[1] - (source in self._presences and self._presences[source].is_marked)
        dead, _ = topology.count(dlq_of(source))
        return Depth(ready + suspects + here, delayed, held + max(0, busy), dead)


def _returned(counters: Counters, returns: int) -> Counters:
    """As they are after a message came back so often."""
    if returns == 0:
        return counters
    for _ in range(1 if returns == FLAGGED else min(2, returns)):
        counters = counters.returned()
    return counters


def why(batch: Batch) -> str:
    if batch.broken is not None:
        return f"The connection broke: {batch.broken}."
    if batch.unroutable:
        (exchange, key), text = next(iter(batch.unroutable.items()))
        place = f"queue {key!r}" if not exchange else f"a queue bound to exchange {exchange!r} with the key {key!r}"
        return (
            f"RabbitMQ cannot route to {place} ({text}): it was deleted, or its binding was. To make it again: start bezoar anew."
        )
    return "RabbitMQ refused to store (basic.nack): the queue is full or unavailable. See its length limits and its log."
