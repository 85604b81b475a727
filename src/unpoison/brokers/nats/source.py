"""Take the messages of one source, from three durable consumers: the source itself, what is to be started again, and letters that
were replayed. Messages that must run alone have a fourth.

A message that has to wait does so as a copy under a subject of its own, beside the retries. Servers from 2.12 on deliver it
themselves at its time: a *schedule*. Older ones take the same flag and never fire, so there we do it: one more consumer on those
copies hands each back to the server until its time has come, and then moves it on. The source itself is never asked to wait: a
delayed message would hold one of its places, and its count would be forgotten.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from unpoison.brokers.nats import copies, envelope, wire
from unpoison.brokers.nats.client import Client
from unpoison.brokers.nats.connection import NO_RESPONDERS, Connection
from unpoison.brokers.nats.envelope import Arrived, Seen, place
from unpoison.brokers.nats.mover import Mover
from unpoison.brokers.nats.stream_reading import read
from unpoison.brokers.nats.subscription import A_MOMENT, Subscription
from unpoison.brokers.nats.topology import Topic
from unpoison.brokers.nats.writing import Copy
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.model.message import Counters, Delivery
from unpoison.port import serialization
from unpoison.port.copying.leased_source import LeasedSource, returned
from unpoison.port.copying.leases import all_in_turn
from unpoison.port.copying.settling import LetGo, Receipt
from unpoison.port.copying.suspects import Suspect, start_alone
from unpoison.port.reading import Unreadable, read_all, read_one
from unpoison.port.takeovers import CameBack

FOREIGN_ATTEMPTS = (
    "Source %r: message %r has a header x-delivery-attempts that unpoison did not write (there is no x-unpoison-stamp). It does "
    "not count: the message starts as a new one, and its handler sees the header."
)


class Suspects:
    """The messages of one source that must run alone: a `Holder` of the kit, with its notes of starts."""

    def __init__(self, topic: Topic, client: Client, ring: Callable[[], None]) -> None:
        self._topic, self._client = topic, client
        self.subscription = Subscription(*topic.suspects, client.connection, ring)
        self.held, self.renew = self.subscription.held, self.subscription.renew
        self._left_since: float | None = None
        self._shown: tuple[Connection, bytes] | None = None
        self._showing = threading.Lock()

    def has_one(self) -> bool:
        """Whether one can be taken. One that a vanished consumer holds can be once the server has given that consumer up."""
        if self.subscription.buffer:
            return True
        info = self.subscription.info()
        if info["num_pending"] > 0:
            return True
        if info["num_ack_pending"] <= len(self.subscription.leases) or self._is_held_by_another():
            self._left_since = None
            return False
        now = time.monotonic()
        self._left_since = self._left_since or now
        return now - self._left_since >= self._topic.suspects.ack_wait

    def take(self, by: str, came_back: CameBack) -> Delivery | None:
        """The next one, for the consumer `by`; its start is on record."""
        self._left_since = None
        arrived = self._next()
        self._show_for(arrived)
        if arrived is None:
            return None
        found = read_one(arrived, self._read, partial(envelope.not_read, self._topic.names.source, self))
        if isinstance(found, Unreadable):
            return found  # it is not started
        # Put aside it comes back, with a start counted that never was.
        return start_alone(found, by, self, came_back, partial(self.subscription.leases.forget, [arrived.reply]))

    def _next(self) -> Arrived | None:
        """One that came late, after an earlier question, or else one that is asked for: a second one would not be started."""
        taken = self.subscription.take(1)
        if not taken:
            self.subscription.wait(self.subscription.ask(1))
            taken = self.subscription.take(1)
        return taken[0] if taken else None

    def _show_for(self, arrived: Arrived | None) -> None:
        """Show that this one is held. If that fails it is not: it waits here for the next try, for as long as it is ours."""
        try:
            self.show()
        except BaseException:
            if arrived is not None:
                self.subscription.leases.forget([arrived.reply])
                self.subscription.buffer.appendleft(arrived)
            raise

    def _read(self, arrived: Arrived) -> Suspect:
        where = place(arrived.reply)
        seen = envelope.look(arrived.block, where)
        receipt = Receipt(self, arrived.reply, arrived.block)
        delivery = Delivery(receipt, self._topic.names.source, seen.id, arrived.body, seen.key, seen.headers, seen.counters)
        return Suspect(delivery, seen.stamp, where.delivered - 1)

    def let_go(self, receipts: Sequence[Receipt]) -> LetGo:
        outcome = self.subscription.let_go(receipts)
        for receipt in receipts:
            with suppress(UnpoisonError):  # a note more or less changes nothing
                self._clear(envelope.look_safely(receipt.envelope, place(receipt.handle)).stamp)
        return outcome

    # Other consumers ask whether one is held.

    def _is_held_by_another(self) -> bool:
        """The consumer that holds one answers. If there is none the server says so at once."""
        try:
            question = self._topic.names.holding.encode()
            block, _ = self._client.connection().request(question, b"", "asking who runs a suspect")
        except BrokerUnavailable:
            return True
        return wire.status(block) != NO_RESPONDERS

    def show(self) -> None:
        """Answer consumers that ask, for as long as one is held."""
        with self._showing:
            if not len(self.subscription.leases):
                if self._shown is not None and self._shown[0].is_open:
                    self._shown[0].unsubscribe(self._shown[1])
                    self._shown[0].forget(self._shown[1])
                self._shown = None
            elif self._shown is None or not self._shown[0].is_open:
                connection = self._client.connection()
                question = self._topic.names.holding.encode()
                number = connection.subscribe(question, lambda _, reply, __, ___: connection.answer(reply, b"here"))
                self._shown = (connection, number)

    # Notes of starts.

    def _subject(self, stamp: str) -> str:
        return f"{self._topic.names.starts}.{hashlib.blake2b(stamp.encode(), digest_size=12).hexdigest()}"

    def store(self, stamp: str, note: bytes) -> None:
        if refused := self._client.store([Copy(self._subject(stamp), b"", note)]):
            raise BrokerUnavailable(f"NATS refuses to note a start: {refused[0].text}.")

    def find(self, stamp: str) -> list[bytes]:
        return [each.body for each in read(self._client.connection(), self._topic.names.dlq, self._subject(stamp))]

    def _clear(self, stamp: str) -> None:
        """It came to an end: its starts need not be known any longer."""
        question = {"filter": self._subject(stamp)}
        self._client.connection().ask(f"STREAM.PURGE.{self._topic.names.dlq}", question, "removing notes of starts")
        self.show()


class Source(LeasedSource):
    def __init__(self, name: str, client: Client, ring: Callable[[], None]) -> None:
        self._client = client
        topic = client.topic(name)
        super().__init__(name, min(at.ack_wait for at in (topic.work, topic.again, topic.replays, topic.suspects)))
        self.work, self.again, self.replays = (
            Subscription(*at, client.connection, ring) for at in (topic.work, topic.again, topic.replays)
        )
        self.suspects = Suspects(topic, client, ring)
        self.filled: set[Subscription] = set()
        """Where we have stored something ourselves since we last looked."""
        self._trouble: UnpoisonError | None = None
        """Met by a fetch that had taken something before; the next one raises it."""
        self._mover = None if topic.later is None else Mover(topic, topic.later, client)

    @property
    def pulled(self) -> tuple[Subscription, ...]:
        return self.work, self.again, self.replays

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return *self.pulled, self.suspects.subscription

    def has_published(self) -> None:
        self.filled.add(self.work)

    def has_suspect(self) -> bool:
        return self.suspects.has_one()

    def take_suspect(self, by: str) -> Delivery | None:
        return self.suspects.take(by, self.came_back)

    def is_left_alone(self, after: float) -> bool:
        return any(each.is_left_alone(min(after, self.work.leases.lasts / 2)) for each in self.pulled)

    def fetch(self, limit: int) -> list[Delivery]:
        """Some of those that came by themselves, then what is ready: new ones first, and retries if there is room."""
        return self._fetched(self._fetch_into, limit)

    def fetch_paused(self, limit: int) -> list[Delivery]:
        """What is ready. No request is left with the server."""
        return self._fetched(self._fetch_few_into, limit)

    def _fetched(self, fetch_into: Callable[[list[Delivery], int], None], limit: int) -> list[Delivery]:
        if (trouble := self._trouble) is not None:
            self._trouble = None
            raise trouble
        deliveries: list[Delivery] = []
        try:
            fetch_into(deliveries, limit)
        except UnpoisonError as error:
            if not deliveries:
                raise
            self._trouble = error  # what was taken is held: to drop it would be to hold it for ever
        self.tell_due()
        return deliveries

    def _fetch_into(self, deliveries: list[Delivery], limit: int) -> None:
        for each in (self.replays, self.again):
            room = limit - len(deliveries)
            deliveries += self._admitted(each, each.take(min(room, max(1, room // 2))))
        deliveries += self._pulled(self.work, limit - len(deliveries))
        for each in (self.again, self.replays):
            if len(deliveries) < limit and (each in self.filled or not each.is_listening):
                deliveries += self._pulled(each, limit - len(deliveries))
        for each in self.pulled if len(deliveries) < limit else (self.again, self.replays):
            each.listen()

    def _fetch_few_into(self, deliveries: list[Delivery], limit: int) -> None:
        for each in self.pulled:
            if len(deliveries) < limit:
                deliveries += self._pulled(each, limit - len(deliveries))

    def _pulled(self, pulled: Subscription, room: int) -> list[Delivery]:
        """What is ready there; for certain what we have stored there ourselves."""
        if len(pulled.buffer) < room:
            pulled.wait(pulled.ask(room - len(pulled.buffer)))
        if pulled in self.filled:
            self.filled.discard(pulled)
            if not pulled.buffer:
                time.sleep(A_MOMENT) if self.is_paused else pulled.listen_closely()
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
        counters = returned(self._counters(holder, arrived.block, seen), where.delivered - 1)
        self.came_back.note(self.name, int(where.delivered > 1))
        receipt = Receipt(holder, arrived.reply, arrived.block)
        return Delivery(receipt, self.name, seen.id, arrived.body, seen.key, seen.headers, counters)

    def _counters(self, holder: Subscription, block: bytes, seen: Seen) -> Counters:
        """Those of a dead letter that another program has published to the source again are the ones of a replay."""
        if holder is self.work and (record := copies.record_of(block)) is not None:
            self.moved_back.note(self.name)
            return serialization.restarted(record, seen.counters.replays)
        if envelope.has_foreign_attempts(block):
            self.tell_foreign(FOREIGN_ATTEMPTS, seen.id)
        return seen.counters

    def verify(self) -> None:
        for each in self.subscriptions:
            each.verify()

    def renew(self) -> None:
        self._client.connection()  # where there is none, one question is enough
        all_in_turn([*(partial(_keep, each) for each in self.subscriptions), self.suspects.show])

    def stop_listening(self) -> None:
        """What we hand back goes there."""
        self.again.cancel()

    def unfetched(self) -> Iterator[list[Delivery]]:
        for each in self.pulled:
            each.cancel()
        yield [delivery for each in self.pulled for delivery in self._admitted(each, each.take(len(each.buffer)))]

    def close(self) -> None:
        if self._mover is not None:
            self._mover.close()


def _keep(subscription: Subscription) -> None:
    """Renew what is held there. What the server has forgotten is not ours, and not renewed."""
    subscription.verify()
    subscription.renew()
