"""How fast is a queue in Redis, beside loops written by hand with redis-py?

The loop reads a hundred entries at a time and ends them with one script that asks first whose they are, acknowledges and deletes
them: without that question it would not be as safe. It publishes with pipelined XADDs. Both sides use hiredis. The server is a
private one that writes its append-only file and syncs it every second.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import redis as client

from bench.cases import orders
from bench.cases.isolation import drained_from, published_to
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from unpoison.body.payload import new_ids
from unpoison.brokers.redis.names import keys_of
from unpoison.brokers.redis.scripts import FINISH

MESSAGES = 50_000
AT_ONCE = 100
AT_A_TIME = 1_000
BATCHES = 30
GROUP, OWNER = "unpoison", "loop"


@benchmark("redis-drain", "Redis drained with isolation on, one worker, beside a loop by hand", rounds=5)
def drain(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "redis-py: XREADGROUP 100, run, end by script", "unpoison, isolated worker"
    with served("redis") as server:
        sides = {
            baseline: lambda: child.run("redis:raw_drain", Sample, url=server.fresh()),
            ours: lambda: child.run("redis:unpoison_drain", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.9)})


@benchmark("redis-publish-many", "publish_many to Redis, 1,000 messages at a time, beside pipelined XADD", rounds=5)
def publish_many(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "redis-py: pipeline of 1,000 XADD", "unpoison publish_many"
    with served("redis") as server:
        sides = {
            baseline: lambda: child.run("redis:raw_publish", Sample, url=server.fresh()),
            ours: lambda: child.run("redis:unpoison_publish", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.7)})


def raw_drain(_: Path, url: str) -> Sample:
    decode, done = msgspec.json.Decoder().decode, 0
    keys = keys_of("orders", GROUP)[: FINISH.takes]
    with client.Redis.from_url(url, protocol=2) as connection:
        for first in range(0, MESSAGES, AT_A_TIME):
            _publish(connection, [orders.order(number) for number in range(first, first + AT_A_TIME)])
        connection.xgroup_create("orders", GROUP, "0")
        end = connection.register_script(FINISH.text)
        with child.Stopwatch() as watch:
            while found := connection.xreadgroup(GROUP, OWNER, {"orders": ">"}, count=AT_ONCE):
                ((_, entries),) = found
                for _, fields in entries:
                    orders.handle(decode(fields[b"body"]))
                end(keys, [GROUP, OWNER, len(entries), *[id_ for id_, _ in entries]])
                done += len(entries)
        if done != MESSAGES or connection.xlen("orders"):
            raise AssertionError(f"{done} of {MESSAGES} messages were handled, {connection.xlen('orders')} are left")
    return watch.sample(done)


def unpoison_drain(folder: Path, url: str) -> Sample:
    return drained_from(url, folder, MESSAGES)


def raw_publish(_: Path, url: str) -> Sample:
    payloads = [orders.order(number) for number in range(AT_A_TIME)]
    with client.Redis.from_url(url, protocol=2) as connection, child.Stopwatch() as watch:
        for _ in range(BATCHES):
            _publish(connection, payloads)
    return watch.sample(BATCHES * AT_A_TIME)


def unpoison_publish(_: Path, url: str) -> Sample:
    return published_to(url, BATCHES, AT_A_TIME)


def _publish(connection: "client.Redis", payloads: Sequence[object]) -> None:
    encode = msgspec.json.Encoder().encode
    pipeline = connection.pipeline(transaction=False)
    for id_, payload in zip(new_ids(len(payloads)), payloads, strict=True):
        pipeline.xadd("orders", {"id": id_, "body": encode(payload)})
    pipeline.execute()
