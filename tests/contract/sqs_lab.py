"""How are the faults of SQS caused?"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from servers.elasticmq import SQS
from tests.contract.sqs_proxy import Proxy
from unpoison.brokers.sqs.broker import SQSBroker
from unpoison.model.message import Delivery, Native, Outgoing
from unpoison.port.broker import Broker, Capability
from unpoison.testing import Lab
from unpoison.testing.given import PLAIN_ID
from unpoison.testing.isolation.diary import wait_until


class Queue:
    """A queue, without unpoison."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name

    @property
    def url(self) -> str:
        return self.client.get_queue_url(QueueName=self.name)["QueueUrl"]

    def create(self, **attributes: str) -> None:
        self.client.create_queue(QueueName=self.name, Attributes=attributes)

    def send(self, body: str, **more: Any) -> None:
        self.client.send_message(QueueUrl=self.url, MessageBody=body, **more)

    def received(self, **more: Any) -> list[dict]:
        options = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"], **more}
        return self.client.receive_message(QueueUrl=self.url, **options).get("Messages", [])

    def attributes(self) -> dict[str, str]:
        return self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])["Attributes"]

    def change(self, **attributes: str) -> None:
        self.client.set_queue_attributes(QueueUrl=self.url, Attributes=attributes)

    def delete(self) -> None:
        self.client.delete_queue(QueueUrl=self.url)


VISIBILITY, SHORT_VISIBILITY = 30, 2
"""Seconds after which SQS takes back what a killed consumer held. Only tests that wait for that have the short time: on a busy
machine any consumer may be silent for so long, and would lose its messages."""


class SQSLab(Lab):
    """A prefix of its own."""

    modules = (
        *(f"unpoison.brokers.sqs.{name}" for name in ("broker", "source", "mover", "subscription", "deadletters", "foreign_dlq")),
        *(f"unpoison.port.copying.{name}" for name in ("leased_broker", "settling", "whole_dlq", "dlq_index")),
    )
    readers = tuple(f"unpoison.brokers.sqs.envelope.{name}" for name in ("look", "plain"))
    similar_source = "orders-eu"  # the name of a queue has no dot

    def __init__(
        self,
        server: SQS,
        folder: Path,
        *,
        visibility: int = VISIBILITY,
        wait: int = 0,
        pollers: int = 4,
        with_proxy: bool = False,
    ) -> None:
        if with_proxy and server.endpoint is None:
            pytest.skip("a proxy cannot stand before Amazon's own: requests are signed for where they go")
        self.proxy = Proxy(server.endpoint or "") if with_proxy else None
        self._server, self._visibility = server, visibility
        url = f"{server.fresh()}&visibility={visibility}&wait={wait}&pollers={pollers}"
        super().__init__(url if self.proxy is None else url.replace(server.endpoint or "", self.proxy.endpoint), folder)
        # SQS does not fence for certain, so the adapter does not claim it; by its own clock it keeps these promises all the same.
        self.capabilities |= Capability.FENCED

    def queue(self, name: str) -> "Queue":
        """One of the queues as every other tool sees it."""
        prefix = parse_qs(urlsplit(self.url).query)["prefix"][0]
        return Queue(self._server.client(), prefix + name)

    def fill_a_dlq_of_others(self, name: str, bodies: Sequence[bytes]) -> str:
        queue = self.queue(name)
        queue.create()
        for body in bodies:
            queue.send(body.decode())
        return queue.name

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """As if this process had been paused: nothing is renewed until SQS has taken back what it held."""
        assert isinstance(broker, SQSBroker)
        keeper = broker._keeper
        assert keeper is not None
        renew, keeper._renew = keeper._renew, lambda: None
        for source in broker.known.values():
            source.work.cancel()  # else what is taken from it would come straight to it again
        try:
            wait_until(
                lambda: not any(each.receipt.holder.held([each.receipt]) for each in deliveries),
                lambda: "It still believes to hold them",
            )
            # SQS keeps its promise for a little longer than we believe in it, and does not tell when.
            time.sleep(0.3 * self._visibility)
        finally:
            keeper._renew = renew

    def refused_message(self, broker: Broker) -> Outgoing:
        """Larger than SQS takes any, and nothing makes it smaller."""
        return Outgoing(PLAIN_ID, "orders", random.Random(7).randbytes(1_100_000))

    lasting = ("message_id", "message_attributes")

    def send_foreign(self, body: bytes, key: bytes, headers: Sequence[tuple[str, bytes]]) -> Native:
        """An attribute is text, a number or bytes, and no two have one name."""
        self.broker("orders")
        attributes = {
            "plain": {"DataType": "String.name", "StringValue": dict(headers)["plain"].decode()},
            "odd": {"DataType": "Binary", "BinaryValue": dict(headers)["odd"]},
        }
        self.queue("orders").send(body.decode(), MessageAttributes=attributes)
        return Native(None, tuple(headers[:2]), {"message_attributes": attributes, "message_group": None})

    @contextmanager
    def losing_answers(self, marker: bytes) -> Iterator[Broker]:
        """SQS has stored them, and the proxy says that it could not be reached."""
        assert self.proxy is not None, "this lab was made without a proxy"
        self.proxy.loses = lambda body: marker in body
        broker = self.broker("orders")
        try:
            yield broker
        finally:
            self.proxy.loses = lambda body: False

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        """An administrator took away the right to send to the DLQ."""
        assert self.proxy is not None, "this lab was made without a proxy"
        self.proxy.denies = lambda operation, queue: operation.startswith("SendMessage") and queue.endswith("-dlq")
        try:
            yield
        finally:
            self.proxy.denies = lambda operation, queue: False

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if self.proxy is not None:
            self.proxy.close()
        if self._server.given:  # one that outlives the tests
            client, prefix = self._server.client(), self.queue("").name
            for url in client.list_queues(QueueNamePrefix=prefix).get("QueueUrls", []):
                client.delete_queue(QueueUrl=url)
