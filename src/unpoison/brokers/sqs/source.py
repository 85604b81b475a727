"""Take the messages of one source, make deliveries of them, and move on those that waited in helper queues.

Messages that must run alone are received, one at a time, from a queue of their own, and held there while they run. SQS counts how
often it handed a message out: here that is how often it was started. Notes of who started it are stored in another queue.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from unpoison.brokers.sqs import copies, envelope
from unpoison.brokers.sqs.envelope import Envelope, Raw, Seen
from unpoison.brokers.sqs.mover import Mover
from unpoison.brokers.sqs.queue_pass import look_through
from unpoison.brokers.sqs.subscription import Subscription
from unpoison.brokers.sqs.topology import Client, Topic
from unpoison.brokers.sqs.writing import Copy
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.model.message import Counters, Delivery
from unpoison.port.copying.leased_source import LeasedSource, returned
from unpoison.port.copying.settling import Receipt
from unpoison.port.copying.suspects import Suspect, start_alone
from unpoison.port.reading import Unreadable, read_one

LAST_SECONDS = 5.0
"""Seconds before the end of the twelve hours at which messages that wait here go back."""

LOOK_EVERY = 1.0
"""Seconds between two looks: each is a request that costs time and money."""

MOST_NOTES = 500

FOREIGN_COUNTERS = (
    "Source %r: message %r has counters in its attribute 'unpoison' that unpoison did not write (they have no stamp). They do "
    "not count: the message starts as a new one. If another program copies that attribute from message to message, have it "
    "leave it out."
)

MUCH = 20
"""Messages taken at once from which on the next ones are received ahead; slow handlers keep nothing from others that way."""

SMALL = 1024 * 1024
"""Bytes of them up to which that is done."""

FETCH_BYTES = 64 * 1024 * 1024
"""Bytes of bodies after which no more are handed over at once: what came compressed may be a hundred times as large here."""


class Suspects:
    """The messages of one source that must run alone, with notes of their starts."""

    def __init__(self, topic: Topic, client: Client, ring: Callable[[], None]) -> None:
        self._topic, self._client = topic, client
        self.subscription = Subscription(topic.suspects, client.connection, ring)
        self._looked_at: float | None = None
        self._has_one = False

    def has_one(self) -> bool:
        """Whether one can be taken; asked again once in a while, and at once after we have stored one there."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= LOOK_EVERY:
            self._has_one = self._client.counts(self._topic.suspects)[0] > 0
            self._looked_at = now
        return self._has_one

    def look_again(self) -> None:
        self._looked_at = None

    def receive(self) -> Raw | None:
        self._looked_at = None
        self.subscription.pull(1)
        taken = self.subscription.take(1)
        return taken[0] if taken else None

    def store(self, stamp: str, note: bytes) -> None:
        if refused := self._client.store([copies.copy(self._topic.starts, note, Envelope())]):
            raise BrokerUnavailable(f"SQS refuses to note a start: {refused[0].text}.")

    def find(self, stamp: str) -> list[str]:
        return [raw["Body"] for raw in look_through(self._client, self._topic.starts, MOST_NOTES)]


class Source(LeasedSource):
    def __init__(self, topic: Topic, client: Client, ring: Callable[[], None]) -> None:
        super().__init__(topic.names.source, client.address.visibility)
        self.topic = topic
        self.work = Subscription(topic.work, client.connection, ring, sort=not topic.is_fifo)
        self.suspects = Suspects(topic, client, ring)
        self.mover = Mover(topic, client, ring)
        self.filled = False
        """Whether we have stored something ourselves since we last looked."""
        self._is_handing_back = False
        self._told: set[str] = set()
        """Receipts of what waits here again: it was told of before that these came back."""
        self._kept: set[str] = set()
        """Receipts of what was kept here in a pause. It waits until it is fetched, also once the pause is over."""

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return self.work, self.suspects.subscription, *self.mover.subscriptions

    @property
    def is_late(self) -> bool:
        return self.work.leases.is_late or self.suspects.subscription.leases.is_late

    def is_left_alone(self, after: float) -> bool:
        if any(each.is_left_alone(after) for each in self.mover.subscriptions):
            return True
        waiting = list(self.work.buffer)
        is_due = self.is_paused or self.work.is_left_alone(after)
        return self._is_ending(waiting) or (is_due and not all(map(self._stays, waiting)))

    def _is_ending(self, waiting: Sequence[Raw]) -> bool:
        """Whether the twelve hours are over for some of these."""
        return any(self.work.leases.is_ending(raw["ReceiptHandle"], LAST_SECONDS) for raw in waiting)

    def _stays(self, raw: Raw) -> bool:
        """Whether it stays here until it is fetched. While the source is paused, that is what a copy has no room for, or would
        lose its place: handed back as it is, SQS would count it as received again."""
        handle = raw["ReceiptHandle"]
        if self.is_paused and handle not in self._kept and (self.topic.is_fifo or not copies.has_room(self.topic, raw)):
            self._kept.add(handle)
        return handle in self._kept

    def _forget_fetched(self) -> None:
        if self._kept:
            self._kept.intersection_update([raw["ReceiptHandle"] for raw in list(self.work.buffer)])

    def keep_paused(self, receipt: Receipt) -> bool:
        """Have a message wait here again, if the source is paused. False if it has to go back."""
        raw: Raw = receipt.envelope
        stays = self.is_paused and not self._is_handing_back and receipt.holder is self.work and not self._is_ending([raw])
        if stays:
            self._kept.add(raw["ReceiptHandle"])
            if envelope.received(raw) > 1:
                self._told.add(raw["ReceiptHandle"])
            self.work.hold([raw])
        return stays

    def has_published(self) -> None:
        self.filled = True

    def has_stored(self) -> None:
        """We have stored something there, perhaps for a start alone."""
        self.filled = True
        self.suspects.look_again()

    def has_suspect(self) -> bool:
        return self.suspects.has_one()

    def fetch(self, limit: int) -> list[Delivery]:
        """What is ready, once what belongs here was moved here."""
        if self.mover.move():
            self.has_stored()
        deliveries = self._admitted(self._taken(limit))
        self._forget_fetched()
        if len(deliveries) >= MUCH and sum(len(each.body) for each in deliveries) < SMALL:
            self.work.read_ahead(limit)
        elif len(deliveries) < limit and not self.work.buffer:
            self.work.listen()
        self.tell_due()
        return deliveries

    def fetch_paused(self, limit: int) -> list[Delivery]:
        """What waits here, or else what is ready. No request is left waiting at the server."""
        was_filled, self.filled = self.filled, False
        work = self.work
        if len(work.buffer) < limit:
            work.pull(limit)
        if was_filled and not work.buffer:
            work.settle_down()
        if not work.buffer and (self.mover.move(listens=False) or was_filled):
            work.pull(limit)
        deliveries = self._admitted(work.take(limit))
        self._forget_fetched()
        self.tell_due()
        return deliveries

    def _taken(self, room: int) -> list[Raw]:
        """What waits here and, unless a request waits at the server already, what is ready there."""
        work = self.work
        was_filled, self.filled = self.filled, False
        if work.collect() and work.buffer:
            return work.take(room)
        if len(work.buffer) < room and (was_filled or not work.is_listening):
            work.pull(room)
            if was_filled and not work.buffer:
                work.settle_down()
        return work.take(room)

    def _admitted(self, arrived: Sequence[Raw]) -> list[Delivery]:
        """Deliveries. What has to wait longer is sent on, and what is too much at once waits here."""
        deliveries: list[Delivery] = []
        waiting: list[tuple[Raw, Copy]] = []
        weight = 0
        for number, raw in enumerate(arrived):
            if weight > FETCH_BYTES:
                self.work.put_back(arrived[number:])
                break
            found = read_one(raw, self._read, partial(envelope.not_read, self.name, self.work))
            if isinstance(found, Copy):
                waiting.append((raw, found))
                weight += found.size
            else:
                deliveries.append(found)
                weight += len(found.body)
        if waiting:
            try:
                self.mover.send_on(self.work, [raw for raw, _ in waiting], [copy for _, copy in waiting])
            except UnpoisonError:
                self.work.put_back([delivery.receipt.envelope for delivery in deliveries])
                raise
        return deliveries

    def _read(self, raw: Raw) -> Delivery | Copy:
        """The delivery of a message, or the copy by which it goes on waiting."""
        if envelope.is_plain(raw):
            return envelope.plain(self.name, raw, self.work)
        seen = envelope.look(raw)
        wait = copies.remaining(raw, seen.envelope)
        if wait > 0:
            return self.mover.sent_on(raw, seen, wait)
        if copies.is_moved_back(seen):
            seen = copies.as_replay(seen)
            self.moved_back.note(self.name, 1)
            if self.topic.is_fifo and copies.has_room(self.topic, raw):
                return self.mover.sent_on(raw, seen, 0.0)  # from a group of its own to the one that it had
        elif envelope.has_foreign_counters(seen):
            self.tell_foreign(FOREIGN_COUNTERS, seen.id)
        receipt = Receipt(self.work, raw["ReceiptHandle"], raw)
        return Delivery(receipt, self.name, seen.id, seen.body, seen.key, seen.headers, self._counted(raw, seen))

    def _counted(self, raw: Raw, seen: Seen) -> Counters:
        """Counters of a message with the times that it came back. For one that is retried in place each was an attempt."""
        times = envelope.received(raw) - 1
        if not times or copies.has_room(self.topic, raw):
            was_told = raw["ReceiptHandle"] in self._told
            self._told.discard(raw["ReceiptHandle"])
            self.came_back.note(self.name, int(times > 0 and not was_told))
            return returned(seen.counters, times)
        return msgspec.structs.replace(seen.counters, attempts=seen.counters.attempts + times)

    def take_suspect(self, by: str) -> Delivery | None:
        """The next one that is to run alone; its start is on record. Those that have to wait longer are sent on."""
        holder = self.suspects.subscription
        while (raw := self.suspects.receive()) is not None:
            seen = read_one(raw, self._look_alone, partial(envelope.not_read, self.name, holder))
            if isinstance(seen, Unreadable):
                return seen  # it is not started
            wait = copies.remaining(raw, seen.envelope)
            if wait <= 0:
                receipt = Receipt(holder, raw["ReceiptHandle"], raw)
                delivery = Delivery(receipt, self.name, seen.id, seen.body, seen.key, seen.headers, seen.counters)
                suspect = Suspect(delivery, seen.stamp, envelope.received(raw) - 1)
                # Put aside it comes back, with a start counted that never was.
                put_aside = partial(holder.leases.forget, [receipt.handle])
                return start_alone(suspect, by, self.suspects, self.came_back, put_aside)
            self.mover.send_on(holder, [raw], [self.mover.sent_on(raw, seen, wait)])
        return None

    def _look_alone(self, raw: Raw) -> Seen:
        seen = envelope.look(raw)
        return copies.as_replay(seen) if copies.is_moved_back(seen) else seen

    def stop_listening(self) -> None:
        self.work.cancel()

    def unfetched(self) -> Iterator[list[Delivery]]:
        """What was kept in a pause stays here, until SQS lets nobody hold it for longer. Then all goes: what comes first in its
        group must not come last."""
        self.work.cancel()
        self.work.collect()
        everything = self._is_ending(list(self.work.buffer))
        staying: list[Raw] = []
        self._is_handing_back = True
        try:
            while self.work.buffer:
                back: list[Raw] = []
                for raw in self.work.take(len(self.work.buffer)):
                    (back if everything or not self._stays(raw) else staying).append(raw)
                yield self._admitted(back)
        finally:
            self._is_handing_back = False
            self.work.hold(staying)
        self.mover.give_back()

    def close(self) -> None:
        """No request is under way any more when this returns."""
        self._kept.clear()
        for each in self.subscriptions:
            each.cancel()
        for each in self.subscriptions:
            each.close()
