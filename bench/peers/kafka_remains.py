"""What is left on Kafka? Of a topic that a group reads: what comes after the committed offsets. Of all others: everything."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

PATIENCE = 20.0


def found(url: str) -> Iterator[tuple[str, bytes]]:
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
