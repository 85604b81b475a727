"""Serve RabbitMQ as a broker.

Messages are pushed here and wait in a buffer until they are fetched. Retries, releases and dead letters are copies that the
server has confirmed before the original is acknowledged. So if this process or the server is killed in between, a message may
exist twice for a moment and is never lost.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import cast

import msgspec

from unpoison.brokers.rabbitmq import envelope
from unpoison.brokers.rabbitmq.checking import check_consumer, check_operator
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.copies import CopyStore
from unpoison.brokers.rabbitmq.envelope import FLAGGED, ForeignMessages, StoreAgain
from unpoison.brokers.rabbitmq.errors import NOT_FOUND, Refused, SourceDeleted
from unpoison.brokers.rabbitmq.held import GIVE_BACK_AFTER, Held, StartNotes
from unpoison.brokers.rabbitmq.names import busy_of, check_name, delayed_of, dlq_of, suspects_of
from unpoison.brokers.rabbitmq.publishing import publish
from unpoison.brokers.rabbitmq.subscription import Subscription
from unpoison.brokers.rabbitmq.url import address
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.brokers.rabbitmq.writing import Copy, why_not_stored
from unpoison.errors import BrokerUnavailable, ConfigError, UnpoisonError
from unpoison.model.message import Delivery, Outgoing
from unpoison.model.wording import counted
from unpoison.port.broker import Capability, Depth, Finding, Kept, Published, Ring, Settlement
from unpoison.port.copying.settling import Copies, Settler, handed_back
from unpoison.port.copying.suspects import Suspect, start_alone
from unpoison.port.reading import Unreadable, read_all, read_one
from unpoison.port.takeovers import CameBack

LOOK_AGAIN = 0.1
"""Seconds between two looks before a source is called empty: a message on its way from one delay to the next is in no count."""


class RabbitMQBroker:
    """One user of the server."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.FENCED | Capability.BROWSE
    native = staticmethod(envelope.native)

    def __init__(self, url: str) -> None:
        self._lock = threading.RLock()
        self._ring: Ring = lambda: None
        self.connections = Connections(address(url), self._wake)
        self._held = Held(self.connections, self._wake, self._give_back_unfetched, self._forget_lost)
        self._copies = CopyStore(self.connections)
        self._settler = Settler(Copies("RabbitMQ", self._copies.store), self._held.ownership_lost)
        self._came_back = CameBack()
        self._foreign = ForeignMessages()
        self._errors: dict[str, Refused] = {}
        """Why suspects of a source cannot be looked at or taken. The next fetch raises it, since nothing else would."""

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self.connections.open(create=create)
        self._ring = ring or self._ring
        try:
            findings = [finding for source in sources for finding in self._have(source, is_consumed=ring is not None)]
            self.connections.created.clear()
            self.connections.writer()  # now, and not with the first dead letter
        except Refused as error:
            self.close()
            if not error.is_forbidden:
                raise
            others = " Where an administrator has made the queues, use create=False." if create else ""
            raise ConfigError(f"{error}{others}") from None
        except BaseException:
            self.close()
            raise
        self.connections.is_started = True
        return findings

    def _have(self, source: str, *, is_consumed: bool) -> Sequence[Finding]:
        """Who does not consume only looks at dead letters: that needs less, and no source."""
        check_name(source)
        if not self.connections.creates:
            (check_consumer if is_consumed else check_operator)(self.connections, source)
        try:
            return self.connections.topology().ensure(source)
        except SourceDeleted:
            if is_consumed:
                raise
            return ()

    def _wake(self) -> None:
        self._ring()

    def inherited_fds(self) -> Sequence[int]:
        """While a worker lives, the server does not hand its messages to others, even if the consumer is gone."""
        return self.connections.descriptors()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        return publish(self.connections, messages)

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self._lock:
            if source in self._errors:
                raise self._errors[source].with_traceback(None)
            subscription = self._held.subscription(source)
            try:
                found = self._fetch(source, subscription, limit) if limit > 0 else ()
            except Refused as refused:
                raise self.connections.source_deleted(source) if refused.code == NOT_FOUND else refused from None
            self._came_back.tell_due()
            self._foreign.tell_due()
            return found

    def _fetch(self, source: str, subscription: Subscription, limit: int) -> Sequence[Delivery]:
        deliveries: list[Delivery] = []
        taken: list[Arrived] = []
        try:
            while True:
                grew = subscription.want(limit)
                is_empty = not (subscription.buffer or subscription.tags)
                has_stored_again = len(taken) > len(deliveries)
                if has_stored_again or is_empty or (grew and len(subscription.buffer) < limit):
                    subscription.settle_down(limit - len(deliveries))
                arrived = subscription.take(limit - len(deliveries))
                taken += arrived
                self._came_back.note(source, sum([message.redelivered for message in arrived]))
                admitted = self._admitted(source, subscription, arrived)
                deliveries += admitted
                if len(admitted) == len(arrived):
                    return deliveries
        except BaseException:
            subscription.put_back(taken)  # or they would be held and never run
            raise

    def _admitted(self, source: str, subscription: Subscription, arrived: Sequence[Arrived]) -> list[Delivery]:
        """Deliveries. What came back flagged and uncounted, or has to wait longer, is stored again first and comes once more."""
        one = partial(envelope.read, source, subscription, self._foreign)
        together = partial(envelope.read_together, source, subscription, one)
        found = read_all(arrived, together, one, partial(envelope.not_read, source, subscription))
        again = [each for each in found if type(each) is StoreAgain]
        if not again:
            return cast("list[Delivery]", found)
        notes = self.connections.notes.needed((source, each.original.wait) for each in again)
        self._store_again(subscription, [(each.arrived, self._again(source, each)) for each in again], notes)
        return [each for each in found if isinstance(each, Delivery)]

    def _again(self, source: str, each: StoreAgain) -> Copy:
        where, extra = self.connections.route(source, each.original.wait)
        return Copy(*where, envelope.copied(each.original, each.counters, extra), each.arrived.body)

    def _store_again(self, subscription: Subscription, again: Sequence[tuple[Arrived, Copy]], notes: Sequence[Copy]) -> None:
        batch = self.connections.store([*(copy for _, copy in again), *notes])
        stored = [message.tag for number, (message, _) in enumerate(again) if batch.stored(number)]
        subscription.acknowledge(stored)
        if len(stored) < len(again):
            raise BrokerUnavailable(
                f"RabbitMQ refused copies of {counted(len(again) - len(stored), 'message')}. {why_not_stored(batch)}"
            )

    def has_suspect(self, source: str) -> bool:
        with self._lock:
            if self._held.has_kept(source):
                return True
            with self._noting(source):
                return self.connections.topology().count(suspects_of(source))[0] > 0

    @contextmanager
    def _noting(self, source: str) -> Iterator[None]:
        self._errors.pop(source, None)
        try:
            yield
        except Refused as refused:
            if refused.is_forbidden or refused.code == NOT_FOUND:  # else the connection is gone, which every fetch says itself
                self._errors[source] = refused
            raise

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self._lock, self._noting(source):
            channel = self._held.suspects_channel(source)
            arrived = channel.take()
            if arrived is None:
                return None
            known = read_one(arrived, envelope.opened, partial(envelope.not_read, source, channel))
            if isinstance(known, Unreadable):
                return known  # it is not started
            delivery = envelope.delivery_of(source, channel, arrived, known, known.counters)
            vanished = 1 if known.returns == FLAGGED else known.returns
            notes = StartNotes(self.connections, source, vanished)
            # Put back into the queue, it would be counted as a start that never was.
            put_aside = partial(channel.keep, arrived)
            return start_alone(Suspect(delivery, known.stamp or known.id, vanished), by, notes, self._came_back, put_aside)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        with self._lock:
            cancelled = self._stop_consuming(settlement.kept)
            try:
                return self._settler.settle(settlement)
            except BrokerUnavailable:
                cancelled = []  # it is settled again
                raise
            finally:
                self._held.unmark_if_idle()
                for subscription in cancelled:
                    subscription.wait_until_let_go()

    def _stop_consuming(self, kept: Sequence[Kept]) -> list[Subscription]:
        """What is handed back is for others: it would come straight to us again while we have credit."""
        found = [self._held.subscriptions.get(source) for source in handed_back(kept)]
        alive = [subscription for subscription in found if subscription is not None and subscription.alive]
        for subscription in alive:
            with suppress(Refused):  # its queue is gone: nothing will come from there
                subscription.cancel()
        return alive

    def _forget_lost(self) -> None:
        self._copies.forget_lost()
        self._settler.forget_lost()

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            if not self._settler.holds(deliveries):
                raise self._held.ownership_lost()

    def depth(self, source: str) -> Depth:
        with self._lock:
            depth = self._depth(source)
            if depth.empty:
                time.sleep(LOOK_AGAIN)
                depth = self._depth(source)
            return depth

    def _depth(self, source: str) -> Depth:
        """From where messages come to where they go, so that one that moves meanwhile is seen at least once."""
        topology = self.connections.topology()
        topology.ensure(source)
        _, held = self._held.count(source)
        # What waits is shared by all sources: without a note of ours none of it is of this one.
        delayed = self.connections.ladder().waiting() if topology.count(delayed_of(source))[0] else 0
        alone, _ = topology.count(suspects_of(source))
        ready, _ = topology.count(source)
        here, _ = self._held.count(source)
        busy = topology.count(busy_of(source))[1] - self._held.is_marked(source)
        dead, _ = topology.count(dlq_of(source))
        return Depth(ready + alone + here, delayed, held + max(0, busy), dead)

    def _give_back_unfetched(self) -> None:
        with suppress(UnpoisonError), self._lock:
            self._give_back(left_alone=GIVE_BACK_AFTER)

    def _give_back(self, left_alone: float = 0.0) -> None:
        """Have others get what waits here, as it was: a plain return would be counted against messages that never started."""
        for source, subscription in self._held.subscriptions.items():
            if not subscription.alive or (left_alone and not subscription.is_left_alone(left_alone)):
                continue
            subscription.cancel()
            waiting = self._admitted(source, subscription, subscription.take(len(subscription.buffer)))
            self._settler.give_back(waiting)
            self._held.unmark_if_idle()
            subscription.wait_until_let_go()

    def _give_back_suspects(self) -> None:
        """Those that were taken and could not be started: put back as they are, they would be counted as started."""
        for source, channel in self._held.suspects_channels.items():
            if channel.alive and channel.kept is not None:
                known = envelope.opened_safely(channel.kept)
                losses = known.counters.losses + max(0, known.returns)
                counters = msgspec.structs.replace(known.counters, alone=True, losses=losses)
                copy = Copy("", suspects_of(source), envelope.copied(known, counters), channel.kept.body)
                if self.connections.store([copy]).stored(0):
                    channel.acknowledge([channel.kept.tag])

    def close(self) -> None:
        with self._lock:
            if self.connections.is_pushing:
                with suppress(UnpoisonError):
                    self._give_back()
            with suppress(UnpoisonError):
                self._give_back_suspects()
            self._held.let_all_go()
            self.connections.close()
