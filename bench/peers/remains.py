"""What is left on a broker, and where? Asked when nobody consumes any more, of the broker itself and not of the peer.

Whatever a peer calls its queues, keys and tables: all of them are read, and every entry comes with the name of its place. Reading
may empty them. An entry of a stream that a consumer group has acknowledged is not there.
"""

import asyncio
import base64
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import nats
import nats.js.errors
import pika
import psycopg
import redis
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from nats.js.api import RetentionPolicy
from psycopg import sql

# What is left on Kafka? Of a topic that a group reads: what comes after the committed offsets. Of all others: everything.


PATIENCE = 20.0


def _found_in_kafka(url: str) -> Iterator[tuple[str, bytes]]:
    address, prefix = urlsplit(url).netloc, parse_qs(urlsplit(url).query).get("prefix", [""])[0]
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    topics = [topic for name, topic in admin.list_topics(timeout=PATIENCE).topics.items() if name.startswith(prefix)]
    committed = _committed(admin, prefix)
    consumer = Consumer({"bootstrap.servers": address, "group.id": f"{prefix}look", "enable.auto.commit": False, "log_level": 0})
    for topic in topics:
        for number in topic.partitions:
            first, end = consumer.get_watermark_offsets(TopicPartition(topic.topic, number), timeout=PATIENCE)
            first = max(first, committed.get((topic.topic, number), first))
            yield from ((topic.topic, body) for body in _between(consumer, topic.topic, number, first, end))
    consumer.close()


def _committed(admin: AdminClient, prefix: str) -> dict[tuple[str, int], int]:
    """The furthest of all groups, by topic and partition."""
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid if group.group_id.startswith(prefix)]
    furthest: dict[tuple[str, int], int] = {}
    for group in groups:
        [answer] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        for part in answer.result().topic_partitions or []:
            at = (part.topic, part.partition)
            furthest[at] = max(furthest.get(at, 0), part.offset)
    return furthest


def _between(consumer: Consumer, topic: str, partition: int, first: int, end: int) -> Iterator[bytes]:
    if first >= end:
        return
    consumer.assign([TopicPartition(topic, partition, first)])
    while (record := consumer.poll(PATIENCE)) is not None and not record.error():
        yield record.value() or b""
        if record.offset() >= end - 1:
            break
    consumer.unassign()


# (the part that gave this module its question)


Entry = tuple[str, bytes]
"""A place and what is in it."""


def found(server: Any, url: str) -> list[Entry]:
    """Every entry on the broker that `url` leads to."""
    match urlsplit(url).scheme:
        case "amqp":
            return list(_rabbitmq(server, url))
        case "redis":
            return list(_redis(url))
        case "nats":
            return asyncio.run(_nats(url))
        case "postgresql":
            return list(_postgresql(url))
        case "sqlite":
            return list(_sqlite(url))
        case "kafka":
            return list(_found_in_kafka(url))
        case other:
            raise ValueError(f"what is left on {other!r} cannot be read; there is no reader for it in {__name__}")


def holds(entry: bytes, body: bytes) -> bool:
    """Is this message in there, as it is, packed, or as base64?"""
    unpacked = _unpacked(entry)
    return body in unpacked or base64.b64encode(body) in unpacked


def waiting(entries: list[Entry], kept: Mapping[str, str]) -> list[Entry]:
    """Those that are not in a place where messages are no longer waiting."""
    return [(place, entry) for place, entry in entries if meaning(place, kept) is None]


def meaning(place: str, kept: Mapping[str, str]) -> str | None:
    return next((words for pattern, words in kept.items() if re.fullmatch(pattern, place)), None)


def _unpacked(entry: bytes) -> bytes:
    try:
        return zlib.decompress(entry)
    except zlib.error:
        return entry


def _rabbitmq(server: Any, url: str) -> Iterator[Entry]:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for queue in server.http("GET", f"/api/queues/{urlsplit(url).path[1:]}"):
            while (got := channel.basic_get(queue["name"], auto_ack=True))[0] is not None:
                yield queue["name"], got[2]


def _redis(url: str) -> Iterator[Entry]:
    with redis.Redis.from_url(url, protocol=2) as client:
        for key in client.scan_iter(count=1_000):
            place = key.decode()
            match client.type(key):
                case b"string":
                    yield place, client.get(key) or b""
                case b"list":
                    yield from ((place, value) for value in client.lrange(key, 0, -1))
                case b"zset":
                    yield from ((place, value) for value in client.zrange(key, 0, -1))
                case b"hash":
                    yield from _hash(place, client.hgetall(key))
                case b"stream":
                    yield from ((place, b" ".join(fields.values())) for fields in _unacknowledged(client, key))


def _hash(place: str, fields: dict[bytes, bytes]) -> Iterator[Entry]:
    """A hash that has a status is one message, any other holds many."""
    status = fields.get(b"status")
    if status is None:
        yield from ((place, value) for value in fields.values())
    else:
        yield f"{place} ({status.decode()})", b" ".join(_unpacked(value) for value in fields.values())


def _unacknowledged(client: "redis.Redis", key: bytes) -> Iterator[dict[bytes, bytes]]:
    groups = client.xinfo_groups(key)
    if not groups:
        yield from (fields for _, fields in client.xrange(key))
    for group in groups:
        delivered = group["last-delivered-id"].decode()
        yield from (fields for _, fields in client.xrange(key, f"({delivered}"))
        for pending in client.xpending_range(key, group["name"], "-", "+", 100_000):
            yield from (fields for _, fields in client.xrange(key, pending["message_id"], pending["message_id"]))


async def _nats(url: str) -> list[Entry]:
    entries: list[Entry] = []
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    for stream in await jetstream.streams_info():
        name, state = str(stream.config.name), stream.state
        is_work = stream.config.retention == RetentionPolicy.WORK_QUEUE
        place = f"{name} (given up)" if is_work and await _given_up(jetstream, name) else name
        for number in range(state.first_seq, state.last_seq + 1) if state.messages else ():
            try:
                message = await jetstream.get_msg(name, number)
            except nats.js.errors.NotFoundError:
                continue
            entries.append((place, message.data or b""))
    await connection.close()
    return entries


async def _given_up(jetstream: Any, stream: str) -> bool:
    """Is there a consumer that waits for nothing? What is in a work queue then has been delivered too often."""
    consumers = await jetstream.consumers_info(stream)
    return bool(consumers) and all(one.num_pending == one.num_ack_pending == 0 for one in consumers)


def _postgresql(url: str) -> Iterator[Entry]:
    with psycopg.connect(url) as connection:
        tables = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        for (table,) in tables:
            cursor = connection.execute(sql.SQL("select * from {}").format(sql.Identifier(table)))
            yield from (_row(table, [column.name for column in cursor.description or ()], row) for row in cursor)


def _sqlite(url: str) -> Iterator[Entry]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    for (table,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
        cursor = connection.execute(f'select * from "{table}"')
        yield from (_row(table, [column[0] for column in cursor.description], row) for row in cursor)
    connection.close()


def _row(table: str, columns: list[str], row: tuple[Any, ...]) -> Entry:
    values = dict(zip(columns, row, strict=True))
    place = f"{table} ({values['status']})" if "status" in values else table
    return place, b" ".join(_as_bytes(value) for value in row)


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    return json.dumps(value, default=str).encode()
