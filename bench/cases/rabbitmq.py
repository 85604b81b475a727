"""How fast is a queue in RabbitMQ, beside loops written by hand with pika?

The loop consumes with a prefetch of 1,000 and acknowledges a hundred messages at a time; it publishes on a channel with
confirms and waits for those of a whole batch at its end. Both sides use a quorum queue. The server is a private one with
its ordinary settings.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import pika

import servers
from bench.cases import orders
from bench.cases.isolation import drained_from
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bezoar import App
from bezoar.payload import new_ids

MESSAGES = 50_000
PREFETCH = 1_000
ACK_EVERY = 100
AT_A_TIME = 1_000
BATCHES = 30
_PERSISTENT = 2


@benchmark("rabbitmq-drain", "RabbitMQ drained with isolation on, one worker, beside a loop by hand", rounds=5)
def drain(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "pika: prefetch 1,000, run, ack 100 at once", "bezoar, isolated worker"
    with servers.private("rabbitmq") as server:
        sides = {
            baseline: lambda: child.run("rabbitmq:raw_drain", Sample, url=server.fresh()),
            ours: lambda: child.run("rabbitmq:bezoar_drain", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.9)})


@benchmark("rabbitmq-publish-many", "publish_many to RabbitMQ, 1,000 messages at a time, beside pipelined confirms", rounds=5)
def publish_many(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "pika: publish 1,000, wait for all confirms", "bezoar publish_many"
    with servers.private("rabbitmq") as server:
        sides = {
            baseline: lambda: child.run("rabbitmq:raw_publish", Sample, url=server.fresh()),
            ours: lambda: child.run("rabbitmq:bezoar_publish", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.7)})


def raw_drain(_: Path, url: str) -> Sample:
    _preload(url)
    decode, done = msgspec.json.Decoder().decode, 0
    with _channel(url) as channel:
        channel.basic_qos(prefetch_count=PREFETCH)
        with child.Stopwatch() as watch:
            for method, _, body in channel.consume("orders"):
                orders.handle(decode(body))
                done += 1
                if done % ACK_EVERY == 0 or done == MESSAGES:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if done == MESSAGES:
                    break
    return watch.sample(done)


def bezoar_drain(folder: Path, url: str) -> Sample:
    return drained_from(url, folder, MESSAGES)


def raw_publish(_: Path, url: str) -> Sample:
    payloads = [orders.order(number) for number in range(AT_A_TIME)]
    with _Confirmed(url) as publisher, child.Stopwatch() as watch:
        for _ in range(BATCHES):
            publisher.publish(payloads)
    return watch.sample(BATCHES * AT_A_TIME)


def bezoar_publish(_: Path, url: str) -> Sample:
    app, payloads = App(url), [orders.order(number) for number in range(AT_A_TIME)]
    app.publish("orders", {})
    with child.Stopwatch() as watch:
        for _ in range(BATCHES):
            app.publish_many("orders", payloads)
    app.close()
    return watch.sample(BATCHES * AT_A_TIME)


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


@contextmanager
def _channel(url: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    yield connection.channel()
    connection.close()


def _preload(url: str) -> None:
    with _Confirmed(url) as publisher:
        for first in range(0, MESSAGES, AT_A_TIME):
            publisher.publish([orders.order(number) for number in range(first, first + AT_A_TIME)])
