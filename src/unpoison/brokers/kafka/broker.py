"""How does Kafka serve as a broker?

The consumer that owns a partition owns its messages; the server refuses commits by any other. Retries and dead letters are copies
that the server has confirmed before the original counts as done. A message that runs while its partition goes to another consumer
stays with the consumer that runs it.
"""

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TypeGuard

from confluent_kafka import Consumer, KafkaError, KafkaException

from unpoison.brokers.kafka import letters
from unpoison.brokers.kafka.checks import differences, kept_for, warn_of_losses
from unpoison.brokers.kafka.cluster_queries import message_counts
from unpoison.brokers.kafka.connection import Connection, Reader
from unpoison.brokers.kafka.envelope import NewRecord, native, published_record, retry_record, settled_note
from unpoison.brokers.kafka.errors import error_text, refused_and_unknown
from unpoison.brokers.kafka.letters import LetterStates
from unpoison.brokers.kafka.names import Names
from unpoison.brokers.kafka.subscription import OffsetsByPartition, Subscription, by_partition
from unpoison.brokers.kafka.topology import Topology
from unpoison.brokers.kafka.url import address
from unpoison.errors import OwnershipLost
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import (
    Capability,
    Dead,
    Depth,
    Finding,
    Kept,
    Published,
    Ring,
    Settlement,
    Waits,
    without_source,
)
from unpoison.port.copying.settling import Copies, Stored


class KafkaBroker:
    """A connection to the servers, and what is consumed over it."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.BROWSE
    native = staticmethod(native)

    def __init__(self, url: str) -> None:
        self.connection = Connection(address(url))
        self.topology = Topology(self.connection)
        self._lock = threading.RLock()
        self._ring: Ring | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._paused: set[str] = set()
        self._letter_states: dict[str, LetterStates] = {}
        self._reader: Reader | None = None
        self._members: list[Consumer] = []
        receipt = attrgetter("receipt.partition", "receipt.offset")
        self._copies = Copies("Kafka", self._store_copies, key=receipt)

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self.connection.create = create
        self._ring = ring or self._ring
        try:
            for source in sources:
                self.topology.ensure(source, to_consume=ring is not None)
            names = [self.connection.names(source) for source in sources] if ring is not None else []
            findings = [finding for each in names for finding in differences(self.connection.queries, each)]
        except BaseException:
            self.close()
            raise
        self.topology.created.clear()
        return findings

    def inherited_fds(self) -> Sequence[int]:
        return ()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        """Each record is confirmed, or fails with an error of its own."""
        refused = without_source(messages, partial(self.topology.ensure, to_publish=True))
        numbers = [number for number in range(len(messages)) if number not in refused]
        names = {source: self.connection.names(source) for source in {messages[number].source for number in numbers}}
        if late := next((messages[number] for number in numbers if messages[number].delay > 0), None):
            names[late.source].must_have_group()
            self.connection.learn_the_time(names[late.source].states)
        now, sent = self.connection.now(), [messages[number] for number in numbers]
        failed = self.connection.store([published_record(names[message.source], message, now) for message in sent])
        certain, unknown = refused_and_unknown({numbers[index]: error for index, error in failed.items()})
        created, self.topology.created = self.topology.created, set()
        return Published(refused | certain, unknown, created)

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self._lock:
            if limit <= 0:
                return ()
            known = self._subscription(source)
            self._look_at_topics(known, known.names.topics)
            if known.lost():
                raise _lost(known)
            if cut_off := known.not_resumed():
                self._move_back(known, [Kept(each, each.counters.returned()) for each in cut_off])
            return known.fetch(limit)

    def has_suspect(self, source: str) -> bool:
        with self._lock:
            return self._subscription(source).has_suspect()

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self._lock:
            return self._subscription(source).take_suspect(by)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        with self._lock:
            moved: list[Kept | Dead] = [*settlement.kept, *settlement.dead]
            everything = [*settlement.gone, *(each.delivery for each in moved)]
            if not everything:
                return ()
            subscription = self._subscription(everything[0].source)
            held = subscription.is_held
            moved = [each for each in moved if held(each.delivery.receipt)]
            back = [each for each in moved if _stays_as_it_was(each)]
            moved = [each for each in moved if not _stays_as_it_was(each)]
            names = subscription.names
            self._look_at_topics(subscription, {names.dlq if isinstance(each, Dead) else names.retry for each in moved})
            self._store(moved)
            gone = settlement.gone
            done = by_partition([*gone, *(each.delivery for each in moved)])
            if not subscription.are_held(done):
                gone = [each for each in gone if held(each.receipt)]
                done = by_partition([*gone, *(each.delivery for each in moved)])
            self._finish(subscription, done, back)
            letter_ids = [self._copies.letter_id(each.delivery) for each in settlement.dead]
            self._copies.forget(each.delivery for each in moved)
            if len(gone) + len(back) + len(moved) < len(everything):
                subscription.lost()
                raise _lost(subscription)
            return letter_ids

    def _finish(self, subscription: Subscription, done: OffsetsByPartition, back: Sequence[Kept]) -> None:
        self._note_settled(subscription, done)
        if back:
            self._give_back(subscription, back)
        for member in subscription.members:
            member.commits.wait(anyway=bool(back))

    def _note_settled(self, subscription: Subscription, done: OffsetsByPartition) -> None:
        """These are done. The group learns it of those whose partition has gone elsewhere."""
        while refs := subscription.finish(done):
            notes = [settled_note(subscription.names, ref) for ref in refs]
            self.connection.must_store(notes, "reporting settled messages")
            subscription.told(done, refs)

    def _give_back(self, subscription: Subscription, back: Sequence[Kept]) -> None:
        """As they were. A message whose partition has gone elsewhere goes to the group as a copy."""
        subscription.put_back(by_partition([each.delivery for each in back]))
        if moved := [each for each in back if each.delivery.receipt.offset in each.delivery.receipt.partition.handed_over]:
            self._move_back(subscription, moved)

    def _move_back(self, subscription: Subscription, moved: Sequence[Kept]) -> None:
        self._store(moved)
        self._note_settled(subscription, by_partition([each.delivery for each in moved]))

    def _store(self, items: Sequence[Kept | Dead]) -> None:
        """Have a confirmed copy of each. One that was confirmed before is not stored again."""
        self._copies.keep_only(lambda key: not key[0].is_lost or key[1] in key[0].handed_over)
        self._copies.store(items)

    def _store_copies(self, items: Sequence[Kept | Dead]) -> Stored:
        """A letter that is too large for the DLQ is stored with less about the failure, and at last without its body."""
        subscription = self._subscription(items[0].delivery.source)
        names, left = subscription.names, list(range(len(items)))
        places, refused = dict[int, tuple[int, int]](), dict[int, KafkaError]()
        for how in (letters.WHOLE, letters.TRIMMED, letters.REFERRING):
            found: dict[int, tuple[int, int]] = {}
            again = self.connection.store([self._copy(names, items[number], how) for number in left], found)
            places |= {left[index]: place for index, place in found.items()}
            refused = {number: why for number, why in refused.items() if number not in left}
            refused |= {left[index]: why for index, why in again.items()}
            left = [number for number, why in refused.items() if _is_too_large(why) and isinstance(items[number], Dead)]
        if refused:
            subscription.watch.look_soon()
        stored = {number: names.letter_id(*place) for number, place in places.items() if isinstance(items[number], Dead)}
        return Stored({number: _why_refused(names, items[number], why) for number, why in refused.items()}, stored)

    def _copy(self, names: Names, item: Kept | Dead, how: int) -> NewRecord:
        record = item.delivery.receipt.record
        if isinstance(item, Dead):
            return letters.letter_record(names, item.letter, record, how)
        if item.after > 0:
            self.connection.learn_the_time(names.states)
        return retry_record(names, item, record, self.connection.now())

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            for each in deliveries:
                if not (known := self._subscription(each.source)).is_held(each.receipt):
                    raise _lost(known)

    def pause(self, source: str) -> None:
        """Its partitions stay with this consumer, which polls on and gives nothing up."""
        with self._lock:
            self._paused.add(source)
            self._subscription(source).pause()

    def resume(self, source: str) -> None:
        with self._lock:
            self._paused.discard(source)
            if known := self._subscriptions.get(source):
                known.resume()

    def deletes_after(self, source: str) -> float | None:
        """By `retention.ms` of its topic. What waits in the retry topic stays for ever."""
        return kept_for(self.connection.queries, self.connection.names(source).topic)

    def depth(self, source: str) -> Depth:
        with self._lock:
            names = self.connection.names(source)
            if known := self._subscriptions.get(source):
                self._look_at_topics(known, names.topics)
            partitions = self.topology.partitions(names.topic)
            ready, delayed, leased = message_counts(self.connection.queries, names, partitions) if partitions else (0, 0, 0)
            return Depth(ready, delayed, leased, self.letter_states(source).dead)

    def lag(self, depth: Depth) -> int:
        return depth.ready + depth.leased

    def waits(self, source: str) -> Waits:
        """Whether other consumers hold messages is not known: the group knows its members, and not what they do."""
        with self._lock:
            known = self._subscriptions.get(source)
            return Waits(None if known is None else known.retries.next_due())

    def close(self) -> None:
        with self._lock:
            for source in self._subscriptions.values():
                source.close()
            self._subscriptions = {}
            for member in self._members:
                with suppress(KafkaException, RuntimeError):
                    member.close()
            self._members = []
            if self._reader is not None:
                self._reader.close()
            self._reader, self._letter_states = None, {}
            self.connection.close()

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            self._reader = Reader(self.connection)
        return self._reader

    def letter_states(self, source: str) -> LetterStates:
        """The dead letters of a source, as they are now."""
        with self._lock:
            if source not in self._letter_states:
                names = self.connection.names(source)
                partitions = self.topology.partitions(names.dlq)
                has_states = bool(self.topology.partitions(names.states))
                self._letter_states[source] = LetterStates(self.connection, names, self.reader, partitions, has_states=has_states)
            self._letter_states[source].refresh()
            return self._letter_states[source]

    def member(self, group: str, topic: str) -> Consumer:
        """Be the only member of a group, for as long as this connection lasts."""
        member = Consumer(self.connection.settings.operator(group, topic))
        with suppress(KafkaException):
            member.list_topics(topic, timeout=5)
        member.subscribe([topic])
        self._members.append(member)
        return member

    def _subscription(self, source: str) -> Subscription:
        if source not in self._subscriptions:
            self.topology.ensure(source, to_consume=True)
            self._subscriptions[source] = Subscription(source, self.connection, self._wake, has_bell=self._ring is not None)
            if source in self._paused:
                self._subscriptions[source].pause()
        return self._subscriptions[source]

    def _look_at_topics(self, subscription: Subscription, needed: Collection[str]) -> None:
        """A topic may be deleted at any time. One of ours is created again, or the source is paused until it is there. A topic
        that another program has created may have any settings."""
        watch = subscription.watch
        missing = watch.missing.intersection(needed)
        if not (missing or watch.replaced):
            return
        self._letter_states.pop(subscription.source, None)
        made = self.topology.make_again(subscription.names, missing) if missing else ()
        foreign, watch.replaced = (watch.replaced | missing).difference(made), set()
        self.topology.forget(foreign)
        watch.forget_missing()
        warn_of_losses(self.connection.queries, subscription.names, foreign)

    def _wake(self) -> None:
        if self._ring is not None:
            self._ring()


def _stays_as_it_was(item: Kept | Dead) -> TypeGuard[Kept]:
    """Whether a message needs no copy: nothing was counted, and it need not wait."""
    return isinstance(item, Kept) and not item.after and item.counters == item.delivery.counters


def _is_too_large(why: KafkaError) -> bool:
    return bool(why.code() == KafkaError.MSG_SIZE_TOO_LARGE)


def _why_refused(names: Names, item: Kept | Dead, why: KafkaError) -> str:
    if not _is_too_large(why):
        return f"{error_text(why)}."
    topic = names.retry if isinstance(item, Kept) else names.dlq
    return (
        f"{error_text(why)}. Topic {topic!r} takes only smaller records, and the source is paused until it takes this one: "
        f"kafka-configs.sh --alter --topic {topic} --add-config max.message.bytes=…"
    )


def _lost(subscription: Subscription) -> OwnershipLost:
    """The consumer ends everything that runs, so messages of partitions that are still ours start again too."""
    subscription.cut_off()
    return OwnershipLost(
        "This consumer's partitions went to another consumer before it could settle its messages: it was paused, or did not "
        "reach Kafka, for longer than session_timeout. Its results are dropped; the messages run there."
    )
