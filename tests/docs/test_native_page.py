"""docs/native.md lists the properties of each broker, and no others."""

import re

import pytest

from tests.docs.pages import ROOT
from unpoison.brokers.kafka import envelope as kafka
from unpoison.brokers.kafka.subscription import Receipt as KafkaReceipt
from unpoison.brokers.nats import envelope as nats
from unpoison.brokers.postgresql import rows as postgresql
from unpoison.brokers.rabbitmq import envelope as rabbitmq
from unpoison.brokers.rabbitmq import envelope as rabbitmq_envelope
from unpoison.brokers.redis import envelope as redis
from unpoison.brokers.sqlite import rows as sqlite
from unpoison.brokers.sqs import envelope as sqs
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.copying.settling import Receipt

MESSAGE = Outgoing("id-1", "orders", b"1", "k", {"a": "b"})
REPLY = b"$JS.ACK.orders.unpoison.1.17.17.1700000000000000000.0"


class Record:
    def headers(self):
        return [("a", b"b")]

    def key(self):
        return b"k"

    def topic(self):
        return "orders"

    def partition(self):
        return 3

    def offset(self):
        return 7

    def timestamp(self):
        return (2, 1_700_000_000_123)


RAW = {"MessageId": "m", "Body": "1", "Attributes": {}, "MessageAttributes": {}, "ReceiptHandle": "h"}
RECEIPTS = {
    "RabbitMQ": (rabbitmq, rabbitmq_envelope.Receipt(None, 1, rabbitmq_envelope.published(MESSAGE), b"\x00\x06orders")),
    "Kafka": (kafka, KafkaReceipt(None, 7, Record())),
    "SQS": (sqs, Receipt(None, "h", RAW)),
    "NATS": (nats, Receipt(None, REPLY, nats.published(MESSAGE))),
    "Redis": (redis, redis.Receipt("owner", False, b"1-1", redis.fields_of(MESSAGE))),
    "PostgreSQL, SQLite": (sqlite, 17),
}


@pytest.mark.parametrize("broker", RECEIPTS)
def test_the_page_lists_the_properties_of_a_broker(broker):
    module, receipt = RECEIPTS[broker]
    told = module.native(Delivery(receipt, "orders", "id-1", b"1", "k", {"a": "b"})).properties
    page = (ROOT / "docs" / "native.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {broker} | ") and line.count("|") == 4]
    assert set(re.findall(r"`([a-z_]+)`", row.split("|")[3])) == set(told)


def test_both_databases_tell_the_same():
    assert postgresql.native(Delivery((1, 17, 5), "orders", "1", b"")) == sqlite.native(Delivery(17, "orders", "1", b""))
    assert postgresql.native(Delivery((0, 17, 5), "orders", "1", b"")) == sqlite.native(Delivery(-17, "orders", "1", b""))
