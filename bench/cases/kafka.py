"""How fast is a topic of Kafka, beside loops written by hand with confluent-kafka?

Two loops: one consumes 500 messages at a time and commits once for each batch without waiting; the other, which most people
write, polls one message at a time and commits each before the next. Publishing hands the client 1,000 messages and waits until
all of them are acknowledged by all replicas. One partition; the server is a private one with its ordinary settings.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, Producer

from bench.cases import orders
from bench.cases.isolation import drained_from, settle_in
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from bezoar import App
from bezoar.brokers.kafka.url import address
from bezoar.payload import new_ids

MESSAGES, WORKED = 250_000, 100_000
FEW = 3_000
AT_A_TIME = 1_000
BATCHES = 20
BATCH = 500
_ID = "x-bezoar-id"
LOOK_SOON = {"fetch.queue.backoff.ms": 10}


@benchmark("kafka-drain", "Kafka drained with isolation on, one worker, beside loops by hand", rounds=5)
def drain(rounds: Rounds) -> Sequence[Row]:
    batches, one_by_one = "confluent-kafka: consume 500, run, commit async", "confluent-kafka: poll, run, commit each"
    ours = "bezoar, isolated worker"
    working, ours_working = f"{batches}, 20 µs handler", f"{ours}, 20 µs handler"
    with served("kafka") as server:
        sides = {
            batches: lambda: child.run("kafka:raw_batches", Sample, url=server.fresh()),
            one_by_one: lambda: child.run("kafka:raw_one_by_one", Sample, url=server.fresh()),
            ours: lambda: child.run("kafka:bezoar_drain", Sample, url=server.fresh()),
            working: lambda: child.run("kafka:raw_batches", Sample, url=server.fresh(), microseconds=20.0),
            ours_working: lambda: child.run("kafka:bezoar_drain", Sample, url=server.fresh(), microseconds=20.0),
        }
        samples = rounds.interleaved(sides)
        idle = {label: samples[label] for label in (batches, one_by_one, ours)}
        busy = {label: samples[label] for label in (working, ours_working)}
        goal = Goal("ratio", "≥", 0.9)
        return [*compared(idle, batches, {ours: goal}), *compared(busy, working, {ours_working: goal})]


@benchmark("kafka-publish-many", "publish_many to Kafka, 1,000 messages at a time, beside an idempotent producer", rounds=5)
def publish_many(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "confluent-kafka: produce 1,000, flush", "bezoar publish_many"
    with served("kafka") as server:
        sides = {
            baseline: lambda: child.run("kafka:raw_publish", Sample, url=server.fresh()),
            ours: lambda: child.run("kafka:bezoar_publish", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.7)})


def raw_batches(_: Path, url: str, microseconds: float = 0.0) -> Sample:
    handle = _handler(microseconds)
    messages = WORKED if microseconds else MESSAGES
    consumer = _subscribed(url, messages)
    decode, done = msgspec.json.Decoder().decode, 0
    first = _first(consumer)
    with child.Stopwatch() as watch:
        records = [first, *consumer.consume(BATCH - 1, 0)]
        while True:
            for record in records:
                handle(decode(record.value()))
            done += len(records)
            consumer.commit(asynchronous=True)
            if done == messages:
                break
            records = consumer.consume(BATCH, 0.05)
        with suppress(KafkaException):  # if the last one was confirmed meanwhile there is nothing left to commit
            consumer.commit(asynchronous=False)
    consumer.close()
    return watch.sample(done)


def raw_one_by_one(_: Path, url: str) -> Sample:
    consumer = _subscribed(url, FEW)
    decode, done = msgspec.json.Decoder().decode, 0
    record: Message | None = _first(consumer)
    with child.Stopwatch() as watch:
        while done < FEW:
            if record is not None:
                orders.handle(decode(record.value()))
                consumer.commit(record, asynchronous=False)
                done += 1
            record = consumer.poll(1.0) if done < FEW else None
    consumer.close()
    return watch.sample(done)


def bezoar_drain(folder: Path, url: str, microseconds: float = 0.0) -> Sample:
    _handler(microseconds)
    return drained_from(url, folder, WORKED if microseconds else MESSAGES, since_first=True)


def _handler(microseconds: float) -> Callable[[dict[str, Any]], None]:
    """One that looks a value up, or works for so long: here, and in workers that are started from here."""
    return settle_in(microseconds)["handle"] if microseconds else orders.handle  # type: ignore[no-any-return]


def raw_publish(_: Path, url: str) -> Sample:
    producer, topic = _producer(url)
    _publish(producer, topic, 0)
    with child.Stopwatch() as watch:
        for _round in range(BATCHES):
            _publish(producer, topic, 0)
    return watch.sample(BATCHES * AT_A_TIME)


def bezoar_publish(_: Path, url: str) -> Sample:
    app, payloads = App(url), [orders.order(number) for number in range(AT_A_TIME)]
    app.publish("orders", {})
    with child.Stopwatch() as watch:
        for _round in range(BATCHES):
            app.publish_many("orders", payloads)
    app.close()
    return watch.sample(BATCHES * AT_A_TIME)


def _producer(url: str) -> tuple[Producer, str]:
    where = address(url)
    return Producer({**where.options, "enable.idempotence": True, "linger.ms": 1}), f"{where.prefix}orders"


def _publish(producer: Producer, topic: str, first: int) -> None:
    encode, ids = msgspec.json.Encoder().encode, new_ids(AT_A_TIME)
    for number in range(AT_A_TIME):
        producer.produce(topic, encode(orders.order(first + number)), headers=[(_ID, ids[number].encode())])
    producer.flush()


def _subscribed(url: str, messages: int) -> Consumer:
    producer, topic = _producer(url)
    for first in range(0, messages, AT_A_TIME):
        _publish(producer, topic, first)
    # Without the last one a loop that is slower than its server stands still for up to a second whenever its queue was full.
    settings = {"group.id": f"{topic}-loop", "auto.offset.reset": "earliest", "enable.auto.commit": False, **LOOK_SOON}
    consumer = Consumer({**address(url).options, **settings})
    consumer.subscribe([topic])
    return consumer


def _first(consumer: Consumer) -> Message:
    """Joining a group takes time that no loop is asked for: the watch starts with the first message."""
    while (record := consumer.poll(1.0)) is None or record.error():
        pass
    return record
