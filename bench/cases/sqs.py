"""How fast is a queue in SQS, beside loops written by hand with boto3?

Two loops: one as the documentation has it, receiving, handling and deleting one message at a time; the other receives ten and
deletes ten, with as many threads as unpoison has requests under way. Publishing sends ten at a time. The server is a private
ElasticMQ that keeps messages in memory: figures of Amazon's own depend on the distance to it, and were not taken.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import msgspec
from botocore.config import Config

from bench.cases import orders
from bench.cases.isolation import drained_from
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from unpoison import App

MESSAGES = 6_000
PUBLISHED = 2_000
POLLERS = 4
"""As many as unpoison has by default."""


@benchmark("sqs-drain", "SQS (ElasticMQ) drained with isolation on, one worker, beside loops by hand", rounds=5)
def drain(rounds: Rounds) -> Sequence[Row]:
    tens, ones = "boto3: receive 10, run, delete 10; 4 threads", "boto3: receive 1, run, delete 1; 4 threads"
    ours = "unpoison, isolated worker, 4 pollers"
    with served("elasticmq") as server:
        sides = {
            tens: lambda: child.run("sqs:raw_tens", Sample, url=server.fresh()),
            ones: lambda: child.run("sqs:raw_ones", Sample, url=server.fresh()),
            ours: lambda: child.run("sqs:unpoison_drain", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), tens, {ours: Goal("ratio", "≥", 0.9)})


@benchmark("sqs-publish-many", "publish_many to SQS (ElasticMQ), beside batches of ten by hand", rounds=5)
def publish_many(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "boto3: send_message_batch, 10 at a time", "unpoison publish_many"
    with served("elasticmq") as server:
        sides = {
            baseline: lambda: child.run("sqs:raw_publish", Sample, url=server.fresh()),
            ours: lambda: child.run("sqs:unpoison_publish", Sample, url=server.fresh()),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.7)})


def raw_tens(_: Path, url: str) -> Sample:
    return _drained(url, 10)


def raw_ones(_: Path, url: str) -> Sample:
    return _drained(url, 1)


def _drained(url: str, at_once: int) -> Sample:
    client, queue = _opened(url)
    _publish(client, queue, MESSAGES)
    left, lock = [MESSAGES], threading.Lock()
    decode = msgspec.json.Decoder().decode

    def loop() -> None:
        while left[0] > 0:
            messages = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=at_once).get("Messages", [])
            for message in messages:
                orders.handle(decode(message["Body"]))
            if messages:
                _delete(client, queue, [message["ReceiptHandle"] for message in messages])
            with lock:
                left[0] -= len(messages)

    with child.Stopwatch() as watch:
        threads = [threading.Thread(target=loop) for _ in range(POLLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if left[0]:
        raise AssertionError(f"{MESSAGES - left[0]} instead of {MESSAGES} messages")
    return watch.sample(MESSAGES)


def _delete(client: Any, queue: str, handles: Sequence[str]) -> None:
    if len(handles) == 1:
        client.delete_message(QueueUrl=queue, ReceiptHandle=handles[0])
        return
    entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
    if client.delete_message_batch(QueueUrl=queue, Entries=entries).get("Failed"):
        raise AssertionError("not deleted")


def unpoison_drain(folder: Path, url: str) -> Sample:
    # Else the end of the run, when the last request waits at the server for messages that never come, would be measured too.
    return drained_from(f"{url}&wait=0", folder, MESSAGES)


def raw_publish(_: Path, url: str) -> Sample:
    client, queue = _opened(url)
    with child.Stopwatch() as watch:
        _publish(client, queue, PUBLISHED)
    return watch.sample(PUBLISHED)


def unpoison_publish(_: Path, url: str) -> Sample:
    app, payloads = App(url), [orders.order(number) for number in range(PUBLISHED)]
    app.publish("orders", {})
    with child.Stopwatch() as watch:
        app.publish_many("orders", payloads)
    app.close()
    return watch.sample(PUBLISHED)


def _opened(url: str) -> tuple[Any, str]:
    parts = urlsplit(url)
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    client = boto3.client(
        "sqs",
        region_name=options["region"],
        endpoint_url=options["endpoint"],
        aws_access_key_id=parts.username,
        aws_secret_access_key=parts.password,
        config=Config(max_pool_connections=POLLERS),
    )
    return client, client.create_queue(QueueName=options["prefix"] + "loop")["QueueUrl"]


def _publish(client: Any, queue: str, count: int) -> None:
    encode = msgspec.json.Encoder().encode
    for first in range(0, count, 10):
        entries = [{"Id": str(n), "MessageBody": encode(orders.order(first + n)).decode()} for n in range(10)]
        client.send_message_batch(QueueUrl=queue, Entries=entries)
