"""Open a queue as a DLQ by its own name, whoever made it: `--dlq orders.parking`.

Nothing is made beside it but a lock that ends with its connection, so there is no history: what was sent again is gone. Letters
of unpoison that another tool has put there go to their source, others to where they came from.

To look at letters means to take them and to put them back. A quorum queue with a delivery limit counts that: at its limit
RabbitMQ deletes the letter, or dead-letters it again. Since RabbitMQ 4.0 each quorum queue has a limit of 20 unless it says -1,
and on 4.3 a letter brings its count along from the queue that it died in, so that the first look may be the last. So such a queue
is not looked at unless the user accepts that. A classic queue counts nothing.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.brokers.rabbitmq.deadletters import ASK_AGAIN, PATIENCE, LettersReading, unpacked
from unpoison.brokers.rabbitmq.errors import LOCKED, PRECONDITION_FAILED, Refused
from unpoison.brokers.rabbitmq.foreign import origin
from unpoison.brokers.rabbitmq.letters import Found
from unpoison.brokers.rabbitmq.management import Management, Unanswered, queues_of
from unpoison.brokers.rabbitmq.properties import text_of
from unpoison.brokers.rabbitmq.queue_pass import waiting_in
from unpoison.brokers.rabbitmq.sending_back import send_back_each, whole_letter
from unpoison.brokers.rabbitmq.topology import Topology
from unpoison.brokers.rabbitmq.url import Address, address
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port import serialization
from unpoison.port.broker import Published
from unpoison.port.copying.dlq_index import Entry, Keep
from unpoison.port.copying.whole_dlq import WholeDLQ
from unpoison.port.foreign import dlq as by_name
from unpoison.port.reading import read_one

LOCK = "unpoison.lock.{}"
ASK_WITHIN = 3.0
"""Seconds for a question to the management API."""


def opened(url: str, dlq: str, accepted: Collection[str]) -> "ForeignDLQ":
    by_name.check_accepted(accepted)
    broker = RabbitMQBroker(url)
    broker.open([], create=False)
    try:
        topology = broker.connections.topology()
        _check(address(url), topology, dlq, accepted)
    except BaseException:
        broker.close()
        raise
    return ForeignDLQ(broker, dlq)


def _check(where: Address, topology: Topology, dlq: str, accepted: Collection[str]) -> None:
    if not topology.is_there(dlq):
        raise by_name.not_there("queue", dlq, where.shown)
    if topology.is_there(f"{dlq}.lock") and topology.is_there(f"{dlq}.history"):
        sources = [source for source, name in where.dlqs.items() if name == dlq]
        raise by_name.is_ours(dlq, sources[0] if sources else dlq.removesuffix(".dlq"))
    danger = _danger(where, topology, dlq)
    if danger and by_name.DELIVERY_LIMIT not in accepted:
        raise ConfigError(
            f"Queue {dlq!r} {danger}. To look at a letter means to take it and to put it back, and RabbitMQ counts that: at the "
            f"limit the letter is deleted, or dead-lettered again. Remove the limit: make the queue again with "
            f"x-delivery-limit=-1, or as a classic queue. {by_name.accepting(by_name.DELIVERY_LIMIT)}"
        )


def _danger(where: Address, topology: Topology, dlq: str) -> str:
    """Why looking at this queue may delete letters; empty if it cannot. Policies are seen through the management API only."""
    try:
        found = queues_of(Management(where, ASK_WITHIN)).get(dlq)
    except Unanswered as why:
        return "" if _is_classic(topology, dlq) else f"may have a delivery limit, which cannot be seen: {str(why).rstrip('.')}"
    if found is None:
        return "" if _is_classic(topology, dlq) else "may have a delivery limit, which cannot be seen"
    if found.kind == "stream":
        raise ConfigError(
            f"Queue {dlq!r} is a stream: nothing can be taken from it. Copy it into a queue (a shovel), and name that."
        )
    limit = found.limit(topology.connection.version)
    return "" if limit is None else f"has a delivery limit of {limit} ({found.by('delivery-limit')})"


def _is_classic(topology: Topology, dlq: str) -> bool:
    """By AMQP alone: the server says of what type a queue is when it is declared as one of another type. It exists, so nothing is
    made. It needs the right to configure the queue."""
    try:
        arguments = {"x-queue-type": "quorum"}
        topology.ask(
            lambda channel, done: channel.queue_declare(dlq, durable=True, arguments=arguments, callback=done), "looking"
        )
    except Refused as refused:
        if refused.code != PRECONDITION_FAILED:
            return False
        is_of_type = "'x-queue-type'" in refused.text and (
            "current is 'classic'" in refused.text or "current is none" in refused.text
        )
        return is_of_type or "arg 'durable'" in refused.text  # quorum queues are always durable
    return False


class ForeignDLQ(WholeDLQ):
    """Any queue."""

    def __init__(self, broker: RabbitMQBroker, dlq: str) -> None:
        super().__init__(broker, dlq, partial(_reading, broker, dlq), partial(_counted, broker, dlq))
        self._connections = broker.connections

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        return send_back_each(self._connections, self._source, letters, lambda arrived: source_of(self._source, arrived))


def source_of(dlq: str, arrived: Arrived) -> str:
    """The source of a letter of unpoison; of others the DLQ's own name."""
    return read_one(arrived, partial(_source_of, dlq), lambda *_: dlq)


def _source_of(dlq: str, arrived: Arrived) -> str:
    headers = {each.name: each.value for each in properties.read(arrived.properties).headers.entries}
    is_ours = serialization.is_ours(text_of(headers, serialization.LETTER.encode()))
    return (text_of(headers, serialization.GIST[0].encode()) or dlq) if is_ours else dlq


@contextmanager
def _locked(topology: Topology, dlq: str) -> Iterator[None]:
    """Keep other operators of unpoison from it. Who may not make the lock does without: each then sees what the other has not
    taken out."""
    name, ends = LOCK.format(dlq), time.monotonic() + PATIENCE
    while (has := _lock(topology, name)) is None:
        if time.monotonic() > ends:
            raise BrokerUnavailable(f"Another operator has been working on {dlq!r} for {PATIENCE:g} s. Try again later.")
        time.sleep(ASK_AGAIN)
    try:
        yield
    finally:
        if has:
            with suppress(BrokerUnavailable):  # else it ends with the connection
                topology.ask(lambda channel, done: channel.queue_delete(name, callback=done), "letting go")


def _lock(topology: Topology, name: str) -> bool | None:
    """Whether we have it; None: another has it."""
    try:
        topology.ask(lambda channel, done: channel.queue_declare(name, exclusive=True, callback=done), "locking")
    except Refused as refused:
        if refused.code == LOCKED:
            return None
        if refused.is_forbidden or refused.code == PRECONDITION_FAILED:
            return False
        raise
    return True


def _counted(broker: RabbitMQBroker, dlq: str) -> int:
    topology = broker.connections.topology()
    with _locked(topology, dlq):
        return waiting_in(topology.connection, dlq)


@contextmanager
def _reading(broker: RabbitMQBroker, dlq: str) -> Iterator["ForeignReading"]:
    with _locked(broker.connections.topology(), dlq):
        reading = ForeignReading(broker, dlq)
        try:
            yield reading
        finally:
            reading.close()


class ForeignReading(LettersReading):
    """The letters of any queue, taken out of it. It has no history."""

    def __init__(self, broker: RabbitMQBroker, dlq: str) -> None:
        self._begin_with(broker, dlq, dlq, "")

    def source_of(self, arrived: Arrived) -> str:
        return source_of(self._source, arrived)

    def take_past(self, keep: Keep) -> None:
        pass

    def letter(self, entry: Entry, data: bytes) -> DeadLetter:
        return self._placed(self._read(entry, data))

    def _placed(self, found: Found) -> DeadLetter:
        if found.told is None:
            return found.letter
        return by_name.of_source(found.letter, origin(self._source, found.told))

    def whole(self, entry: Entry, data: bytes) -> WholeLetter:
        return whole_letter(self.source_of(unpacked(data)), unpacked(data), self.letter(entry, data))

    def _check_can(self, state: str) -> None:
        if state != "replayed":
            raise by_name.keeps_no_history(self.dlq)

    def _again(self, entry: Entry, data: bytes) -> Copy:
        made = self._sent_back(entry, data, None)
        if made.queue == self.dlq:
            raise by_name.without_origin(entry.id)
        return Copy("", *made)
