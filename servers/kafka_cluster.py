"""How do several Kafka servers become a cluster?

A controller that nobody kills, and servers that keep a copy of everything each: any of them can be killed, also two at once.
Everything but the number of copies is as Kafka has it by default.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from servers.errors import ServerFailed
from servers.kafka import Kafka
from servers.server import Server
from servers.starting import private

COPIES, IN_SYNC = "3", "2"
CONTROLLER = 100
EVERYTHING_THRICE = {
    "default.replication.factor": COPIES,
    "min.insync.replicas": IN_SYNC,
    "offsets.topic.replication.factor": COPIES,
    "transaction.state.log.replication.factor": COPIES,
    "transaction.state.log.min.isr": IN_SYNC,
    "share.coordinator.state.topic.replication.factor": COPIES,
    "share.coordinator.state.topic.min.isr": IN_SYNC,
}


@dataclass(frozen=True)
class Cluster:
    nodes: dict[int, Kafka]
    """By the numbers that Kafka calls them by."""

    @property
    def addresses(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def client(self) -> AdminClient:
        """For a test to look with."""
        return AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})

    def fresh(self) -> str:
        """A prefix of its own for every topic and group."""
        return f"kafka://{self.addresses}?prefix=t{uuid.uuid4().hex[:8]}.&group=unpoison"

    def leader(self, topic: str, partition: int = 0) -> Kafka:
        """The server that all who read and write this partition ask."""
        client = self.client()  # one that nobody has any more takes its answers with it
        (answer,) = client.describe_topics(TopicCollection([topic])).values()
        return self.nodes[answer.result(10).partitions[partition].leader.id]

    def coordinator(self, group: str) -> Kafka:
        """The server that says who is in this group, and keeps what it committed."""
        client = self.client()
        (answer,) = client.describe_consumer_groups([group]).values()
        return self.nodes[answer.result(10).coordinator.id]


@contextmanager
def cluster(nodes: int = 3) -> Iterator[Cluster]:
    """Yields once every one of them knows all the others."""
    with ExitStack() as stack:

        def node(number: int, settings: dict[str, str]) -> Kafka:
            server: Server = stack.enter_context(private("kafka", settings={"node.id": str(number)} | settings))
            assert isinstance(server, Kafka)
            return server

        controller = node(CONTROLLER, EVERYTHING_THRICE | {"process.roles": "controller"})
        voters = {"process.roles": "broker", "controller.quorum.voters": f"{CONTROLLER}@{controller.controller}"}
        made = Cluster({number: node(number, EVERYTHING_THRICE | voters) for number in range(1, nodes + 1)})
        deadline = time.monotonic() + 60
        while not all(len(each.client().list_topics(timeout=10).brokers) == nodes for each in made.nodes.values()):
            if time.monotonic() > deadline:
                raise ServerFailed(f"the {nodes} nodes did not become a cluster within 60 s:\n{controller.last_log_lines()}")
            time.sleep(0.05)
        yield made
