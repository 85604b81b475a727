"""How fast is a stream in NATS JetStream, beside loops written by hand with nats-py?

Two loops: one pulls 256 messages at a time, the other has them pushed with at most 1,000 unacknowledged. Both acknowledge
each message and have the last of 256 acknowledgements confirmed, which confirms those before it; unpoison does the same.
Publishing keeps 1,000 acknowledgements in flight and waits for all of them. The server is a private one with its ordinary
settings.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import nats
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig

from bench.cases import orders
from bench.cases.isolation import drained_from, published_to
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from unpoison.body.payload import new_ids

MESSAGES = 30_000
AT_A_TIME = 1_000
BATCHES = 20
BATCH = 256
PENDING = 1_000
_ID = "x-unpoison-id"


@benchmark("nats-drain", "NATS drained with isolation on, one worker, beside loops by hand", rounds=5)
def drain(rounds: Rounds) -> Sequence[Row]:
    pulled, pushed, ours = "nats-py: pull 256, run, ack each", "nats-py: push, run, ack each", "unpoison, isolated worker"
    with served("nats") as server:
        sides = {
            pulled: lambda: child.run("nats:raw_pull", Sample, url=server.fresh()),
            pushed: lambda: child.run("nats:raw_push", Sample, url=server.fresh()),
            ours: lambda: child.run("nats:unpoison_drain", Sample, url=server.fresh()),
        }
        taken = rounds.interleaved(sides)
    best = max((pulled, pushed), key=lambda side: sum(sample.rate for sample in taken[side]))
    return compared(taken, best, {ours: Goal("ratio", "≥", 0.9)})


@benchmark("nats-publish-many", "publish_many to NATS, 1,000 messages at a time, beside acks in flight", rounds=5)
def publish_many(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "nats-py: publish 1,000, wait for all acks", "unpoison publish_many"
    with served("nats") as server:
        sides = {
            baseline: lambda: child.run("nats:raw_publish", Sample, url=server.fresh()),
            ours: lambda: child.run("nats:unpoison_publish", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.7)})


def raw_pull(_: Path, url: str) -> Sample:
    return asyncio.run(_pull(url))


async def _pull(url: str) -> Sample:
    connection, stream = await _preloaded(url)
    consumer = await stream.pull_subscribe("orders", durable="loop", config=ConsumerConfig(max_ack_pending=100_000))
    decode, done = msgspec.json.Decoder().decode, 0
    with child.Stopwatch() as watch:
        while done < MESSAGES:
            messages = await consumer.fetch(BATCH)
            for message in messages:
                orders.handle(decode(message.data))
            for message in messages[:-1]:
                await message.ack()
            await messages[-1].ack_sync()
            done += len(messages)
    await connection.close()
    return watch.sample(done)


def raw_push(_: Path, url: str) -> Sample:
    return asyncio.run(_push(url))


async def _push(url: str) -> Sample:
    connection, stream = await _preloaded(url)
    decode, done, over = msgspec.json.Decoder().decode, 0, asyncio.Event()

    async def handle(message: Any) -> None:
        nonlocal done
        orders.handle(decode(message.data))
        done += 1
        if done % BATCH and done < MESSAGES:
            await message.ack()
        else:
            await message.ack_sync()
        if done == MESSAGES:
            over.set()

    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=PENDING)
    with child.Stopwatch() as watch:
        await stream.subscribe("orders", durable="loop", cb=handle, manual_ack=True, config=config)
        await over.wait()
    await connection.close()
    return watch.sample(done)


def unpoison_drain(folder: Path, url: str) -> Sample:
    return drained_from(url, folder, MESSAGES)


def raw_publish(_: Path, url: str) -> Sample:
    return asyncio.run(_publish(url))


async def _publish(url: str) -> Sample:
    connection, stream = await _opened(url)
    with child.Stopwatch() as watch:
        for _ in range(BATCHES):
            await _published(stream, 0)
    await connection.close()
    return watch.sample(BATCHES * AT_A_TIME)


def unpoison_publish(_: Path, url: str) -> Sample:
    return published_to(url, BATCHES, AT_A_TIME)


async def _opened(url: str) -> tuple[Any, Any]:
    connection = await nats.connect(url)
    stream = connection.jetstream(publish_async_max_pending=AT_A_TIME)
    await stream.add_stream(StreamConfig(name="orders", subjects=["orders"], retention=RetentionPolicy.WORK_QUEUE))
    return connection, stream


async def _published(stream: Any, first: int) -> None:
    """A thousand orders, with all acknowledgements in flight at once."""
    encode = msgspec.json.Encoder().encode
    ids = new_ids(AT_A_TIME)
    acks = [
        await stream.publish_async("orders", encode(orders.order(first + number)), headers={_ID: ids[number]})
        for number in range(AT_A_TIME)
    ]
    await asyncio.gather(*acks)


async def _preloaded(url: str) -> tuple[Any, Any]:
    connection, stream = await _opened(url)
    for first in range(0, MESSAGES, AT_A_TIME):
        await _published(stream, first)
    return connection, stream
