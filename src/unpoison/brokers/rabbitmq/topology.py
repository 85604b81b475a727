"""Create the queues that a source needs, and check those that exist already. Their names are in names.py.

What is missing is created; what exists is never changed. A difference is a finding, with both values and what to do about it. The
exchange `orders.made` says that unpoison created the queue `orders`: only then does it create the queue again after it was
deleted. A queue that was there before has bindings and arguments that unpoison does not know; one made in its place would lack
them, and messages published to its exchanges would vanish.
"""

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from unpoison.brokers.rabbitmq.connection import Channel, Connection, Question
from unpoison.brokers.rabbitmq.errors import NOT_FOUND, PRECONDITION_FAILED, Refused, SourceDeleted
from unpoison.brokers.rabbitmq.names import (
    DLX,
    busy_of,
    check_name,
    delayed_of,
    dlq_of,
    history_of,
    lock_of,
    made_of,
    starts_of,
    suspects_of,
)
from unpoison.brokers.rabbitmq.url import Address
from unpoison.errors import BrokerUnavailable
from unpoison.port.broker import Finding

BACKSTOP = 100
"""Deliveries after which the server itself gives a message up: a net far below our own limits."""

HISTORY = 10_000
STARTS = 1_000
DELAYS = 10_000
BUSY, COUNTED_AGAIN = 0.2, 10
"""A quorum queue that is busy for 250 ms says that it has no messages. So "none" that took longer than `BUSY` seconds to say is
not believed, and asked for again, so often at the most."""


class Queue(NamedTuple):
    """A queue as we create it."""

    name: str
    arguments: Mapping[str, Any]


class Binding(NamedTuple):
    """From an exchange to a queue or, as `to_kind` says, to another exchange."""

    exchange: str
    to: str
    key: str
    arguments: Mapping[str, Any] = {}
    to_kind: str = "queue"


def queues(source: str, version: tuple[int, int], where: Address) -> list[Queue]:
    """What a source needs, in the order in which it is created. What expires in the source goes to its DLQ; what expires there is
    deleted."""
    kept: dict[str, Any] = {"x-queue-type": "quorum"}
    if version >= (4, 0):
        kept["x-delivery-limit"] = -1  # else looking at a letter 20 times would delete it
    return [
        Queue(dlq_of(where, source), {**kept, **_ttl(where.dlq_ttl)}),
        Queue(
            source,
            {
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": DLX,
                "x-dead-letter-routing-key": source,
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
                "x-delivery-limit": BACKSTOP,
                **_ttl(where.message_ttl),
            },
        ),
        Queue(suspects_of(source), kept),
        Queue(history_of(where, source), {**kept, "x-max-length": HISTORY}),
        Queue(starts_of(source), {"x-queue-type": "classic", "x-max-length": STARTS}),
        Queue(busy_of(source), {"x-queue-type": "classic", "x-max-length": 1}),
        Queue(delayed_of(source), {**kept, "x-max-length": DELAYS}),
        Queue(lock_of(where, source), {"x-queue-type": "classic", "x-max-length": 1}),
    ]


def _ttl(seconds: float | None) -> dict[str, int]:
    return {} if seconds is None else {"x-message-ttl": max(1, int(seconds * 1000))}


class Topology:
    """Creates and checks queues on one connection. `known` are sources that were found complete on an earlier one, `created`
    those that did not exist at all."""

    def __init__(self, connection: Connection, where: Address, known: set[str], created: set[str], *, create: bool) -> None:
        self.connection, self.where, self._known, self._created, self.creates = connection, where, known, created, create
        self._channel: Channel | None = None

    def ensure(self, source: str) -> list[Finding]:
        """Have everything a source needs. What is known to be there is not asked for again, and with create=False nothing
        is asked for at all: `checking` has done that at start-up."""
        if source in self._known:
            return []
        check_name(self.where, source)
        findings = self._make(source) if self.creates else []
        self._known.add(source)
        return findings

    def _make(self, source: str) -> list[Finding]:
        if not self.is_there(source):
            # We create the lock last, and nobody else does: if it exists, the source existed.
            if self.is_there(lock_of(self.where, source)) and not self.exists(made_of(source)):
                raise SourceDeleted(source, may_create=True)
            self._exchange(made_of(source))
            self._created.add(source)
        findings, dlq = self._exchange(DLX), dlq_of(self.where, source)
        for queue in queues(source, self.connection.version, self.where):
            findings += _differences(
                partial(self.declare, queue), f"Queue {queue.name!r}", partial(_difference_name, queue.name == dlq)
            )
        self.bind(Binding(DLX, dlq, source))
        return findings

    def has(self, source: str) -> bool:
        """Whether its queue exists; created now if this is the first time that it is asked for."""
        self.ensure(source)
        return self.is_there(source)

    def is_there(self, queue: str) -> bool:
        return _is_found(lambda: self.channel().look_at(queue))

    def exists(self, exchange: str) -> bool:
        return _is_found(
            lambda: self.ask(lambda channel, done: channel.exchange_declare(exchange, passive=True, callback=done), "looking")
        )

    def renew(self, source: str) -> None:
        """Have what a source needs, also what was deleted in the meantime."""
        self._known.discard(source)
        self.ensure(source)

    def deleted(self, source: str) -> BrokerUnavailable:
        """What to say of a source that was there and is not any more."""
        if self.creates and self.exists(made_of(source)):
            return BrokerUnavailable(
                f"Queue {source!r} was deleted, with all that was in it. It is created again at one of the next tries."
            )
        return SourceDeleted(source, may_create=self.creates)

    def check_read(self, queue: str) -> None:
        """Raises Refused if this user may not consume from a queue. Nothing is consumed: RabbitMQ looks at the right first and
        at the arguments second, and no priority is called so."""
        channel = self.connection.channel()
        try:
            channel.consume(queue, arguments={"x-priority": "none"})
        except Refused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
        finally:
            channel.close()

    def count(self, queue: str) -> tuple[int, int]:
        """How many messages are ready in a queue, and how many consume from it. Raises Refused if there is no such queue."""
        ready = consumers = 0
        for _ in range(COUNTED_AGAIN):
            asked = time.monotonic()
            answer = self.channel().look_at(queue)
            ready, consumers = int(answer.message_count), int(answer.consumer_count)
            if ready or time.monotonic() - asked < BUSY:
                break
        return ready, consumers

    def declare(self, queue: Queue) -> None:
        self.ask(
            lambda channel, done: channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments), callback=done),
            f"declaring queue {queue.name}",
        )

    def declare_exchange(self, name: str, kind: str) -> None:
        self.ask(lambda channel, done: channel.exchange_declare(name, kind, durable=True, callback=done), "declaring")

    def bind(self, bound: Binding) -> None:
        what = (bound.to, bound.exchange, bound.key, dict(bound.arguments))
        self.ask(lambda channel, done: getattr(channel, f"{bound.to_kind}_bind")(*what, callback=done), "binding")

    def _exchange(self, name: str) -> list[Finding]:
        return _differences(partial(self.declare_exchange, name, "direct"), f"Exchange {name!r}", lambda _: "exchange-differs")

    def ask(self, question: Question, what: str) -> Any:
        return self.channel().ask(question, what)

    def channel(self) -> Channel:
        """For questions. The server closes it when it refuses one, so the next question may need a new one."""
        if self._channel is None or not self._channel.is_open:
            self._channel = self.connection.channel()
        return self._channel


def _is_found(look: Callable[[], object]) -> bool:
    try:
        look()
    except Refused as refused:
        if refused.code != NOT_FOUND:
            raise
        return False
    return True


def _differences(declare: Callable[[], None], what: str, name_of: Callable[[str], str]) -> list[Finding]:
    """Declare something. If it was there before and differs, that is a finding."""
    try:
        declare()
    except Refused as refused:
        if refused.code != PRECONDITION_FAILED:
            raise
        name, told = name_of(refused.text), refused.text.removeprefix("PRECONDITION_FAILED - ")
        return [
            Finding(
                name,
                f"{what} was there before and differs from what unpoison would create: {told}. It is used as it is.",
                "To have it created again: stop producers and consumers, move its messages away (shovel), delete it, start "
                "again. What a policy can set needs no such thing: rabbitmqctl set_policy.",
                loses=not name.endswith("-differs"),
            )
        ]
    return []


_LOSING = {
    "durable": "queue-not-durable",
    "auto_delete": "queue-auto-delete",
    "x-expires": "queue-expires",
    "x-message-ttl": "messages-expire",
}
"""Differences that lose messages, as the doctor calls them. The server names the first difference only; the management API, where
it answers, tells the rest."""


def _difference_name(is_dlq: bool, told: str) -> str:
    found = re.search(r"inequivalent arg '([\w-]+)'.* received (?:none|.*) but current is (?!none)", told)
    name = _LOSING.get(found[1], "") if found else ""
    if found and found[1] == "x-queue-type" and "'stream'" in told.partition("current is")[2]:
        return "stream-queue"
    return "dlq-expires" if name == "messages-expire" and is_dlq else name or "queue-differs"
