"""How does Kafka serve as a broker?

Whose message it is follows from whose partition it is, and the server refuses a commit by anybody else. Retries and dead
letters are copies that the server has confirmed before the original counts as done. What runs while its partition goes to
another consumer stays with whoever runs it.
"""

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException

from unpoison.brokers.kafka import letters, publishing
from unpoison.brokers.kafka.cluster_queries import message_counts
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.envelope import NewRecord, native
from unpoison.brokers.kafka.errors import error_text
from unpoison.brokers.kafka.letter_states import DEAD, LetterStates
from unpoison.brokers.kafka.partition import Partition
from unpoison.brokers.kafka.publishing import publish
from unpoison.brokers.kafka.reading import Reader
from unpoison.brokers.kafka.subscription import OffsetsByPartition, Subscription, by_partition
from unpoison.brokers.kafka.topic_checks import differences, warn_of_losses
from unpoison.brokers.kafka.topology import Topology
from unpoison.brokers.kafka.url import address
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import Delivery, Outgoing
from unpoison.model.wording import counted
from unpoison.port.broker import Capability, Dead, Depth, Finding, Kept, Published, Ring, Settlement, Waits


class KafkaBroker:
    """One user of the servers."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.BROWSE
    native = staticmethod(native)

    def __init__(self, url: str) -> None:
        self.connection = Connection(address(url))
        self.topology = Topology(self.connection)
        self._lock = threading.RLock()
        self._ring: Ring | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._letter_states: dict[str, LetterStates] = {}
        self._reader: Reader | None = None
        self._members: list[Consumer] = []
        self._stored: set[tuple[Partition, int]] = set()
        self._letter_ids: dict[tuple[Partition, int], str] = {}

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
        outcome = publish(self.connection, messages, partial(self.topology.ensure, to_publish=True))
        created, self.topology.created = self.topology.created, set()
        return msgspec.structs.replace(outcome, created=created) if created else outcome

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self._lock:
            if limit <= 0:
                return ()
            known = self._subscription(source)
            self._see_to_topics(known, known.names.topics)
            if known.lost():
                raise _lost()
            return known.fetch(limit)

    def has_suspect(self, source: str) -> bool:
        with self._lock:
            return self._subscription(source).has_suspect()

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self._lock:
            return self._subscription(source).take_suspect(by)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        with self._lock:
            everything: list[Delivery] = [
                *settlement.gone,
                *(each.delivery for each in settlement.kept),
                *(each.delivery for each in settlement.dead),
            ]
            if not everything:
                return ()
            source = self._subscription(everything[0].source)
            held = source.is_held
            kept = [each for each in settlement.kept if held(each.delivery.receipt)]
            back = [each for each in kept if not each.after and each.counters == each.delivery.counters]
            moved: list[Kept | Dead] = [each for each in kept if each not in back]
            moved += [each for each in settlement.dead if held(each.delivery.receipt)]
            needed = {source.names.dlq if isinstance(each, Dead) else source.names.retry for each in moved}
            self._see_to_topics(source, needed)
            self._store(source, moved)
            gone = settlement.gone
            done = by_partition([*gone, *(each.delivery for each in moved)])
            if not source.are_held(done):
                gone = [each for each in gone if held(each.receipt)]
                done = by_partition([*gone, *(each.delivery for each in moved)])
            self._finish(source, done, back)
            letter_ids = [self._letter_ids.pop(_mark(each), None) for each in settlement.dead]
            if len(gone) + len(back) + len(moved) < len(everything):
                source.lost()
                raise _lost()
            return letter_ids

    def _finish(self, source: Subscription, done: OffsetsByPartition, back: Sequence[Kept]) -> None:
        refs = source.finish(done)
        if refs:
            self.connection.must_store([publishing.settled_note(source.names, ref) for ref in refs], "telling what is done")
        if self._stored:
            self._stored.difference_update((partition, offset) for partition, offsets in done.items() for offset in offsets)
        if back:
            self._give_back(source, back)
        for member in source.members:
            member.commits.wait(anyway=bool(back))

    def _give_back(self, source: Subscription, back: Sequence[Kept]) -> None:
        """As it was. What can no longer be put back into its partition goes to the group as a copy."""
        away = [each for each in back if each.delivery.receipt.offset in each.delivery.receipt.partition.handed_over]
        if away:
            self._store(source, away)
            refs = source.finish(by_partition([each.delivery for each in away]))
            self.connection.must_store([publishing.settled_note(source.names, ref) for ref in refs], "telling what is given back")
        source.put_back(by_partition([each.delivery for each in back if each not in away]))

    def _store(self, source: Subscription, moved: Sequence[Kept | Dead]) -> None:
        """Have a confirmed copy of each. One that was confirmed before is not sent again."""
        self._stored = {
            (partition, offset) for partition, offset in self._stored if not partition.is_lost or offset in partition.handed_over
        }
        self._letter_ids = {mark: id_ for mark, id_ in self._letter_ids.items() if mark in self._stored}
        new = [each for each in moved if _mark(each) not in self._stored]
        places: dict[int, tuple[int, int]] = {}
        refused = self.connection.store([self._copy(source, each, letters.WHOLE) for each in new], places)
        for how in (letters.TRIMMED, letters.REFERRING):
            large = [
                number
                for number, why in refused.items()
                if why.code() == KafkaError.MSG_SIZE_TOO_LARGE and isinstance(new[number], Dead)
            ]
            found: dict[int, tuple[int, int]] = {}
            again = self.connection.store([self._copy(source, new[number], how) for number in large], found)
            for index, number in enumerate(large):
                del refused[number]
                if index in again:
                    refused[number] = again[index]
                else:
                    places[number] = found[index]
        self._stored.update(_mark(each) for number, each in enumerate(new) if number not in refused)
        self._letter_ids |= {
            _mark(each): source.names.letter_id(*places[number])
            for number, each in enumerate(new)
            if isinstance(each, Dead) and number not in refused
        }
        if refused:
            source.watch.look_soon()
            number, why = next(iter(refused.items()))
            topic = source.names.retry if isinstance(new[number], Kept) else source.names.dlq
            what = counted(len(refused), "retry or dead letter", "retries or dead letters")
            raise BrokerUnavailable(f"Kafka does not confirm {what}: {error_text(why)}.{_remedy(topic, why)}")

    def _copy(self, source: Subscription, item: Kept | Dead, how: int) -> NewRecord:
        record = source.record(item.delivery.receipt)
        if isinstance(item, Kept):
            if item.after > 0:
                self.connection.learn_the_time(source.names.states)
            return publishing.retry_record(source.names, item, record, self.connection.now())
        return letters.letter_record(source.names, item.letter, record, how)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            if not all(self._subscription(each.source).is_held(each.receipt) for each in deliveries):
                raise _lost()

    def depth(self, source: str) -> Depth:
        with self._lock:
            names = self.connection.names(source)
            if known := self._subscriptions.get(source):
                self._see_to_topics(known, names.topics)
            partitions = self.topology.partitions(names.topic)
            ready, delayed, leased = message_counts(self.connection.queries, names, partitions) if partitions else (0, 0, 0)
            dead = sum(entry.state == DEAD for entry in self.letter_states(source).by_id.values())
            return Depth(ready, delayed, leased, dead)

    def waits(self, source: str) -> Waits:
        """Who else holds messages is not known: the group knows its members, and not what they are doing."""
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
        return self._subscriptions[source]

    def _see_to_topics(self, source: Subscription, needed: Collection[str]) -> None:
        """Somebody may delete a topic at any time. Ours is made again, or the source is paused until it is there. One that
        somebody else has made may have any settings."""
        watch = source.watch
        missing = watch.missing.intersection(needed)
        if not (missing or watch.replaced):
            return
        self._letter_states.pop(source.source, None)
        made = self.topology.make_again(source.names, missing) if missing else ()
        foreign, watch.replaced = (watch.replaced | missing).difference(made), set()
        self.topology.forget(foreign)
        watch.forget_missing()
        warn_of_losses(self.connection.queries, source.names, foreign)

    def _wake(self) -> None:
        if self._ring is not None:
            self._ring()


def _mark(item: Kept | Dead) -> tuple[Partition, int]:
    receipt = item.delivery.receipt
    return receipt.partition, receipt.offset


def _remedy(topic: str, why: KafkaError) -> str:
    if why.code() != KafkaError.MSG_SIZE_TOO_LARGE:
        return ""
    return (
        f" Topic {topic!r} takes only smaller ones, and nothing goes on before it takes these: "
        f"kafka-configs.sh --alter --topic {topic} --add-config max.message.bytes=…"
    )


def _lost() -> OwnershipLost:
    return OwnershipLost(
        "This consumer's partitions went to another one before it could say what became of its messages: it was paused, or did "
        "not reach Kafka, for longer than session_timeout. Its results are dropped; the messages run there."
    )
