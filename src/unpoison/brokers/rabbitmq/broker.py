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

from unpoison.brokers.rabbitmq import envelope
from unpoison.brokers.rabbitmq.arrivals import Arrivals
from unpoison.brokers.rabbitmq.checking import check_consumer, check_operator
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.copies import CopyStore
from unpoison.brokers.rabbitmq.envelope import FLAGGED
from unpoison.brokers.rabbitmq.errors import NOT_FOUND, Refused, SourceDeleted
from unpoison.brokers.rabbitmq.handing_back import HandingBack
from unpoison.brokers.rabbitmq.held import Held, StartNotes
from unpoison.brokers.rabbitmq.management import Management, Unanswered, expires_after
from unpoison.brokers.rabbitmq.names import busy_of, check_name, delayed_of, dlq_of, suspects_of
from unpoison.brokers.rabbitmq.pausing import PausedSources
from unpoison.brokers.rabbitmq.publishing import publish
from unpoison.brokers.rabbitmq.subscription import Subscription
from unpoison.brokers.rabbitmq.url import address
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.errors import BrokerUnavailable, ConfigError, UnpoisonError
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Capability, Depth, Finding, Kept, Published, Ring, Settlement
from unpoison.port.copying.settling import Copies, Settler, handed_back
from unpoison.port.copying.suspects import Suspect, start_alone
from unpoison.port.reading import Unreadable, read_one

MANAGEMENT_WITHIN = 2.0
"""Seconds for a question to the management API."""

LOOK_AGAIN = 0.1
"""Seconds between two looks before a source is called empty: a message on its way from one delay to the next is in no count."""


class RabbitMQBroker:
    """One user of the server."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.FENCED | Capability.BROWSE
    native = staticmethod(envelope.native)

    def __init__(self, url: str) -> None:
        self._lock = threading.RLock()
        self._ring: Ring = lambda: None
        self._address = address(url)
        self.connections = Connections(self._address, self._wake)
        self._held = Held(self.connections, self._wake, self._look_at_unfetched, self._forget_lost)
        self._copies = CopyStore(self.connections)
        self._settler = Settler(Copies("RabbitMQ", self._copies.store), self._held.ownership_lost)
        self._arrivals = Arrivals(self.connections)
        self._handing_back = HandingBack(self.connections, self._held, self._arrivals, self._settler)
        self._paused = PausedSources(self.connections, self._held, self._arrivals)
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
        check_name(self._address, source)
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
            take = self._paused.fetch if self._paused.has(source) else self._fetch
            try:
                found = take(source, subscription, limit) if limit > 0 else ()
            except Refused as refused:
                raise self.connections.source_deleted(source) if refused.code == NOT_FOUND else refused from None
            self._arrivals.tell_due()
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
                self._arrivals.came_back.note(source, sum([message.redelivered for message in arrived]))
                admitted = self._arrivals.admitted(source, subscription, arrived)
                deliveries += admitted
                if len(admitted) == len(arrived):
                    return deliveries
        except BaseException:
            subscription.put_back(taken)  # or they would be held and never run
            raise

    def has_suspect(self, source: str) -> bool:
        with self._lock:
            if self._held.has_kept(self._held.suspects_channels, source):
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
            return start_alone(
                Suspect(delivery, known.stamp or known.id, vanished), by, notes, self._arrivals.came_back, put_aside
            )

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
            if not subscription.is_wound_down:
                with suppress(Refused):  # its queue is gone: nothing will come from there
                    subscription.cancel()
        return alive

    def _forget_lost(self) -> None:
        self._copies.forget_lost()
        self._settler.forget_lost()

    def pause(self, source: str) -> None:
        """Without a consumer on its queue nothing comes, and nothing is held but what was fetched: RabbitMQ's own time limit for
        consumers cannot be reached by anything else."""
        with self._lock:
            self._paused.add(source)
            self._handing_back.of_paused(source)

    def resume(self, source: str) -> None:
        with self._lock:
            self._paused.discard(source)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            if not self._settler.holds(deliveries):
                raise self._held.ownership_lost()

    def deletes_after(self, source: str) -> float | None:
        """By the TTL of its queue, if the management API tells that, else by `message_ttl`. What expires in a queue that unpoison
        has made becomes a dead letter."""
        try:
            return expires_after(Management(self._address, MANAGEMENT_WITHIN), source)
        except Unanswered:
            return self._address.message_ttl

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
        dead, _ = topology.count(dlq_of(self._address, source))
        return Depth(ready + alone + here, delayed, held + max(0, busy), dead)

    def _look_at_unfetched(self) -> None:
        """In the connection's thread, which must not wait."""
        if self._handing_back.is_due():
            threading.Thread(target=self._hand_back, name="unpoison-rabbitmq-giving-back", daemon=True).start()

    def _hand_back(self) -> None:
        if self._lock.acquire(blocking=False):  # who has it is at work; the next look comes soon
            try:
                with suppress(UnpoisonError):
                    self._handing_back.what_is_due()
            finally:
                self._lock.release()

    def close(self) -> None:
        with self._lock:
            if self.connections.is_pushing:
                with suppress(UnpoisonError):
                    self._handing_back.everything()
            with suppress(UnpoisonError):
                self._handing_back.suspects()
            self._paused.clear()
            self._held.let_all_go()
            self.connections.close()
