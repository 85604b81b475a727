"""How fast is a queue in RabbitMQ, beside loops written by hand with pika?

The loop consumes on an event loop of pika's own (its fastest way) with a prefetch of 1,000 and acknowledges a hundred messages at
a time; it publishes on a channel with confirms and waits for those of a whole batch at its end. Both sides use a quorum queue.
The server is a private one with its ordinary settings.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
import pika

from bench.cases import orders
from bench.cases.isolation import drained_from, published_to
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, beside_first, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from unpoison.body.payload import new_ids
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.model.message import Outgoing
from unpoison.port.broker import Settlement

MESSAGES = 50_000
PREFETCH = 1_000
ACK_EVERY = 100
AT_A_TIME = 1_000
BATCHES = 30
BATCH = 256
SIZES = (1_000, 100_000, 1_000_000)
PROBED = 5_000
_PERSISTENT = 2


@benchmark("rabbitmq-drain", "RabbitMQ drained with isolation on, one worker, beside a loop by hand", rounds=5)
def drain(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "pika: prefetch 1,000, run, ack 100 at once", "unpoison, isolated worker"
    with served("rabbitmq") as server:
        sides = {
            baseline: lambda: child.run("rabbitmq:raw_drain", Sample, url=server.fresh()),
            ours: lambda: child.run("rabbitmq:unpoison_drain", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.9)})


@benchmark("rabbitmq-publish-many", "publish_many to RabbitMQ, 1,000 messages at a time, beside pipelined confirms", rounds=5)
def publish_many(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "pika: publish 1,000, wait for all confirms", "unpoison publish_many"
    with served("rabbitmq") as server:
        sides = {
            baseline: lambda: child.run("rabbitmq:raw_publish", Sample, url=server.fresh()),
            ours: lambda: child.run("rabbitmq:unpoison_publish", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.7)})


@benchmark("rabbitmq-growth", "Fetch and settle on RabbitMQ, with others waiting", rounds=5)
def growth(rounds: Rounds) -> Sequence[Row]:
    with served("rabbitmq") as server:
        sides = {
            f"{size:,} waiting": partial(child.run, "rabbitmq:probed", Sample, url=_filled(server.fresh(), size))
            for size in SIZES
        }
        taken = rounds.interleaved(sides)
    return beside_first(taken)


def probed(_: Path, url: str) -> Sample:
    """Fetch and settle some of what waits; as many are published first, so that the queue stays as full as it was."""
    broker = RabbitMQBroker(url)
    broker.open(["orders"])
    broker.publish([Outgoing(id_, "orders", body) for id_, body in zip(new_ids(PROBED), orders.bodies(PROBED), strict=True)])
    left = PROBED
    with child.Stopwatch() as watch:
        while left:
            deliveries = broker.fetch("orders", min(left, BATCH))
            broker.settle(Settlement(gone=deliveries))
            left -= len(deliveries)
    broker.close()
    return watch.sample(PROBED)


def _filled(url: str, size: int) -> str:
    """A new virtual host in which so many messages wait."""
    broker = RabbitMQBroker(url)
    broker.open(["orders"])
    for first in range(0, size, 10_000):
        count = min(10_000, size - first)
        broker.publish([Outgoing(id_, "orders", body) for id_, body in zip(new_ids(count), orders.bodies(count), strict=True)])
    broker.close()
    return url


def raw_drain(_: Path, url: str) -> Sample:
    _preload(url)
    loop = _Loop(url)
    with child.Stopwatch() as watch:
        loop.run()
    return watch.sample(loop.done)


class _Loop:
    """A consumer by hand."""

    def __init__(self, url: str) -> None:
        self._decode = msgspec.json.Decoder().decode
        self._connection = pika.SelectConnection(
            pika.URLParameters(url), on_open_callback=lambda connection: connection.channel(on_open_callback=self._begin)
        )
        self.done = 0

    def run(self) -> None:
        self._connection.ioloop.start()

    def _begin(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=PREFETCH, callback=lambda _: channel.basic_consume("orders", self._handle))

    def _handle(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        orders.handle(self._decode(body))
        self.done += 1
        if self.done % ACK_EVERY == 0 or self.done == MESSAGES:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if self.done == MESSAGES:
            self._connection.add_on_close_callback(lambda connection, _: connection.ioloop.stop())
            self._connection.close()


def unpoison_drain(folder: Path, url: str) -> Sample:
    return drained_from(url, folder, MESSAGES)


def raw_publish(_: Path, url: str) -> Sample:
    payloads = [orders.order(number) for number in range(AT_A_TIME)]
    with _Confirmed(url) as publisher, child.Stopwatch() as watch:
        for _ in range(BATCHES):
            publisher.publish(payloads)
    return watch.sample(BATCHES * AT_A_TIME)


def unpoison_publish(_: Path, url: str) -> Sample:
    return published_to(url, BATCHES, AT_A_TIME)


class _Confirmed:
    """A publisher by hand: an event loop of pika's own, confirms counted as they come."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._encode = msgspec.json.Encoder().encode
        self._confirmed = self._sent = 0

    def __enter__(self) -> Self:
        self._connection = pika.BlockingConnection(pika.URLParameters(self._url))
        self._blocking = self._connection.channel()
        self._blocking.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
        self._channel = self._blocking._impl  # noqa: SLF001 - the blocking channel waits for each confirm, which would be no match
        self._channel.confirm_delivery(self._confirm)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def publish(self, payloads: Sequence[Any]) -> None:
        for id_, payload in zip(new_ids(len(payloads)), payloads, strict=True):
            properties = pika.BasicProperties(delivery_mode=_PERSISTENT, message_id=id_)
            self._channel.basic_publish("", "orders", self._encode(payload), properties, mandatory=True)
        self._sent += len(payloads)
        while self._confirmed < self._sent:
            self._connection.process_data_events(0.01)

    def _confirm(self, frame: Any) -> None:
        method = frame.method
        self._confirmed = method.delivery_tag if method.multiple else max(self._confirmed, method.delivery_tag)


def _preload(url: str) -> None:
    with _Confirmed(url) as publisher:
        for first in range(0, MESSAGES, AT_A_TIME):
            publisher.publish([orders.order(number) for number in range(first, first + AT_A_TIME)])
