"""How fast is a topic of Kafka, beside loops written by hand with confluent-kafka?

Two loops: one consumes 500 messages at a time and commits once for each batch without waiting; the other, which most people
write, polls one message at a time and commits each before the next. Publishing hands the client 1,000 messages and waits until
all of them are acknowledged by all replicas. One partition; the server is a private one with its ordinary settings.

And how soon are a consumer's messages handled by another one, when it was killed or asked to stop?
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Message, Producer

from bench.cases import orders
from bench.cases.isolation import drained_from, published_to, settle_in
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, Spread, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from unpoison import App
from unpoison.body.payload import new_ids
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.url import address

MESSAGES, WORKED = 250_000, 100_000
FEW = 3_000
AT_A_TIME = 1_000
BATCHES = 20
BATCH = 500
_ID = "x-unpoison-id"
LOOK_SOON = {"fetch.queue.backoff.ms": 10}
TAKEOVERS = 3
PUBLISH_EVERY = 0.02


@benchmark("kafka-drain", "Kafka drained with isolation on, one worker, beside loops by hand", rounds=5)
def drain(rounds: Rounds) -> Sequence[Row]:
    batches, one_by_one = "confluent-kafka: consume 500, run, commit async", "confluent-kafka: poll, run, commit each"
    ours = "unpoison, isolated worker"
    working, ours_working = f"{batches}, 20 µs handler", f"{ours}, 20 µs handler"
    with served("kafka") as server:
        sides = {
            batches: lambda: child.run("kafka:raw_batches", Sample, url=server.fresh()),
            one_by_one: lambda: child.run("kafka:raw_one_by_one", Sample, url=server.fresh()),
            ours: lambda: child.run("kafka:unpoison_drain", Sample, url=server.fresh()),
            working: lambda: child.run("kafka:raw_batches", Sample, url=server.fresh(), microseconds=20.0),
            ours_working: lambda: child.run("kafka:unpoison_drain", Sample, url=server.fresh(), microseconds=20.0),
        }
        samples = rounds.interleaved(sides)
        idle = {label: samples[label] for label in (batches, one_by_one, ours)}
        busy = {label: samples[label] for label in (working, ours_working)}
        goal = Goal("ratio", "≥", 0.9)
        return [*compared(idle, batches, {ours: goal}), *compared(busy, working, {ours_working: goal})]


@benchmark("kafka-publish-many", "publish_many to Kafka, 1,000 messages at a time, beside an idempotent producer", rounds=5)
def publish_many(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "confluent-kafka: produce 1,000, flush", "unpoison publish_many"
    with served("kafka") as server:
        sides = {
            baseline: lambda: child.run("kafka:raw_publish", Sample, url=server.fresh()),
            ours: lambda: child.run("kafka:unpoison_publish", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.7)})


@benchmark(
    "kafka-takeover", "One of two consumers of a group ends: time until the other handles what comes to its partition", rounds=3
)
def takeover(rounds: Rounds) -> Sequence[Row]:
    with served("kafka") as server:
        sides = {
            label: partial(_takeovers, server.fresh, number)
            for label, number in (("kill -9", signal.SIGKILL), ("planned stop (SIGTERM)", signal.SIGTERM))
        }
        taken = rounds.interleaved(sides)
    return [Row(label, Spread.of([seconds for one in all_ for seconds in one]), "s") for label, all_ in taken.items()]


def _takeovers(fresh: Callable[[], str], number: int) -> list[float]:
    return [child.run("kafka:one_takeover", float, url=fresh(), number=number) for _ in range(TAKEOVERS)]


def one_takeover(folder: Path, url: str, number: int) -> float:
    """Seconds from the signal to the first line of a handler in the other consumer. Both have the settings that are usual."""
    with closing(App(url)) as app, _member(folder / "one", url) as one, _member(folder / "other", url) as other:
        _wait_until_shared_out(url)
        app.publish("orders", {})
        holder, left = (one, other) if select.select([one.starts, other.starts], [], [])[0] == [one.starts] else (other, one)
        began = time.monotonic_ns()
        holder.process.send_signal(number)
        while not select.select([left.starts], [], [], PUBLISH_EVERY)[0]:
            app.publish("orders", {})
        return (int(os.read(left.starts, 4096).split()[0]) - began) / 1e9


class _Member(msgspec.Struct):
    """A consumer in another process, and the named pipe through which its handlers tell when they started."""

    process: subprocess.Popen[bytes]
    starts: int


@contextmanager
def _member(starts_at: Path, url: str) -> Iterator[_Member]:
    os.mkfifo(starts_at)
    starts = os.open(starts_at, os.O_RDWR)  # opening it for both waits for nobody
    environment = os.environ | {"UNPOISON_URL": url, "BENCH_ISOLATION": "process", "BENCH_STARTS": str(starts_at)}
    command = [sys.executable, "-m", "bench.cases.idle_consumer"]
    with subprocess.Popen(command, cwd=child.BENCH.parent, env=environment) as process:
        try:
            yield _Member(process, starts)
        finally:
            process.terminate()
    os.close(starts)


def _wait_until_shared_out(url: str) -> None:
    """Until both are in the group, and nothing is about to move."""
    connection = Connection(address(url))
    group = connection.names("orders").group
    while True:
        (answer,) = connection.queries.admin.describe_consumer_groups([group]).values()
        with suppress(KafkaException):  # nobody has come yet
            found = answer.result(10)
            if len(found.members) == 2 and found.state == ConsumerGroupState.STABLE:
                return
        time.sleep(0.05)


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


def unpoison_drain(folder: Path, url: str, microseconds: float = 0.0) -> Sample:
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


def unpoison_publish(_: Path, url: str) -> Sample:
    return published_to(url, BATCHES, AT_A_TIME)


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
