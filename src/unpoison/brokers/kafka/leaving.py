"""How do messages that wait in topics of ours get back into their source, when somebody stops using unpoison?

What waits for its time or for another start is in the group's retry topic, where no other consumer looks. Each such message is
put into its source again, confirmed, and then counts as done in the retry topic. A kill in between leaves it in both places,
under one id, and is never a loss.
"""

import itertools
import time
from collections.abc import Sequence
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.connecting import RARELY_POLLED
from unpoison.brokers.kafka.envelope import ID, Copy
from unpoison.brokers.kafka.leftovers import leftovers
from unpoison.brokers.kafka.names import PARTITIONS, Names
from unpoison.brokers.kafka.record import Record
from unpoison.brokers.kafka.troubles import told
from unpoison.brokers.kafka.waiting_records import Page, pages
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.wording import counted
from unpoison.port.broker import Leftovers, Progress

__all__ = ["leftovers", "move_back"]

LOOK_EVERY = 0.2
CONFIRMED_WITHIN = 10.0


def move_back(url: str, left: Leftovers, within: float, progress: Progress | None = None) -> int:
    with closing(KafkaBroker(url)) as broker:
        names = broker.session.names(left.source)._replace(group_name=left.group)
        if not broker.topology.partitions(names.topic):
            raise ConfigError(
                f"There is no topic {names.topic!r} at {broker.session.address.shown}, so nothing can be moved back into it. "
                f"Make it, or delete {names.retry!r} with all that waits in it."
            )
        _wait_until_nobody_consumes(broker, names, within)
        with closing(Committer(broker, names)) as committer:
            return _move(broker, names, committer, progress, left.waiting)


def _move(broker: KafkaBroker, names: Names, committer: "Committer", progress: Progress | None, total: int) -> int:
    moved = 0
    for page in itertools.chain.from_iterable(pages(broker, names, number) for number in range(PARTITIONS)):
        broker.session.must_store([_back(names, record) for record in page.waiting], "moving messages back")
        moved += len(page.waiting)
        committer.commit(page, moved)
        if progress is not None and page.waiting:
            progress(moved, max(moved, total))
    return moved


def _back(names: Names, record: Record) -> Copy:
    """The message as it was sent: nothing of ours stays on it but the id that it was published with."""
    seen = envelope.look_safely(record)
    id_ = [] if seen.id == seen.stamp.partition("@")[0] else [(ID, seen.id.encode())]
    return Copy(names.topic, record.value(), record.key(), [*id_, *envelope.theirs(record)])


def _wait_until_nobody_consumes(broker: KafkaBroker, names: Names, within: float) -> None:
    """Every consumer of unpoison is in the group of the retry topic; others, which may have taken over already, are not."""
    deadline = time.monotonic() + within
    while there := broker.session.members(names.retry_group):
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"Group {names.group!r} still has {counted(len(there), 'client')} that consume with unpoison "
                f"({', '.join(sorted(there))}), and what waits is theirs. Nothing was moved. Stop them, and run this again."
            )
        time.sleep(LOOK_EVERY)


class Committer:
    """Says for the group of a retry topic what is done there. Kafka lets nobody do that while the group has members."""

    def __init__(self, broker: KafkaBroker, names: Names) -> None:
        self._names = names
        self._answers: list[KafkaError | None] = []
        settings = broker.session.settings() | RARELY_POLLED
        own = {"group.id": names.retry_group, "enable.auto.commit": False, "on_commit": self._hear}
        self._client = Consumer(settings | own)

    def _hear(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        self._answers.append(error or next((each.error for each in places if each.error), None))

    def commit(self, page: Page, moved: int) -> None:
        place = page.done()
        if place is None:
            return
        self._answers.clear()
        error: KafkaError | None = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 - it has no other name
        try:
            self._client.commit(offsets=[place], asynchronous=True)
            deadline = time.monotonic() + CONFIRMED_WITHIN
            while not self._answers and time.monotonic() < deadline:
                self._client.poll(0.05)
            error = self._answers[0] if self._answers else error
        except KafkaException as raised:
            error = raised.args[0]
        if error is not None:
            raise BrokerUnavailable(
                f"Moved back to {self._names.source!r}: {counted(moved, 'message')}, but Kafka does not confirm that the last "
                f"{len(page.waiting)} of them are done in {self._names.retry!r}: {told(error)}. If a consumer has started "
                f"meanwhile, stop it. Run this again: nothing is lost, and those may be moved twice, under their ids."
            )

    def close(self) -> None:
        self._client.close()
