"""Kafka: one node that is broker and controller (KRaft), on the loopback address only. Several of them: kafka_cluster.py.

Kafka has no databases, so a fresh place is a prefix that no topic and no group begins with yet.
"""

import socket
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from servers.maven import Jars, java
from servers.server import Entry, Server

VERSION = "4.3.1"
# More than enough for a test, and a compiler that starts quickly: it lives for minutes.
JAVA_OPTIONS = ("-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dkafka.logs.dir=.")


class Kafka(Server):
    # What it acknowledged is in the page cache, which a kill of the process leaves alone.
    leaves_nothing_when_killed = True

    @property
    def url(self) -> str:
        return self.given or f"kafka://{self.address}"

    @property
    def address(self) -> str:
        """As Kafka's own tools want it."""
        return urlsplit(self.given).netloc if self.given else f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        (self.folder / "data").mkdir()
        self.hand_over(self.folder / "data")
        self.configure(self.settings)
        cluster = uuid.uuid5(uuid.NAMESPACE_OID, self.voters(self.settings)).hex[:22]  # equal for all that have one controller
        self.run(self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self.folder / "server.properties")))

    def voters(self, settings: Mapping[str, str]) -> str:
        """Who controls the cluster: this node, unless another one is named."""
        return settings.get("controller.quorum.voters", f"{settings.get('node.id', '1')}@{self.controller}")

    @property
    def controller(self) -> str:
        return f"127.0.0.1:{self.ports['controller']}"

    def configure(self, settings: Mapping[str, str]) -> None:
        """`settings` are lines of server.properties. Of `listeners` they have the protocols alone: the ports are chosen here."""
        protocols = settings.get("listeners", "PLAINTEXT").split(",")
        roles = settings.get("process.roles", "broker,controller")
        listeners = ",".join(f"{protocol}://127.0.0.1:{self.ports[PORTS[protocol]]}" for protocol in protocols)
        own = {"broker": listeners, "controller": f"CONTROLLER://{self.controller}"}
        lines = {
            "process.roles": roles,
            "node.id": "1",
            "controller.quorum.voters": self.voters(settings),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *(f"{each}:{each}" for each in protocols)]),
            "log.dirs": str(self.folder / "data"),
            **ONE_SMALL_NODE,
            **settings,
            "listeners": ",".join(own[role] for role in roles.split(",")),
            **({"advertised.listeners": listeners} if "broker" in roles else {}),
        }
        self.write("server.properties", "".join(f"{name}={value}\n" for name, value in lines.items()))

    def commands(self) -> dict[str, list[str]]:
        return {"server": self._java("kafka.Kafka", str(self.folder / "server.properties"))}

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [java(), *JAVA_OPTIONS, "-cp", self.entry.place.find() or "", main, *arguments]

    def tool(self, main: str, *arguments: str) -> str:
        """One of Kafka's own commands. kafka-reassign-partitions.sh, for example, runs reassign.ReassignPartitionsCommand.

        They are fetched when first asked for.
        """
        TOOLS.get()
        server = ("--bootstrap-server", self.address)
        return self.run([java(), "-cp", TOOLS.find() or "", f"org.apache.kafka.tools.{main}", *server, *arguments])

    def answers(self) -> bool:
        if self.settings.get("process.roles") == "controller":  # clients have nothing to do with it
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", self.ports["controller"])) == 0
        try:
            return bool(self.client().list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def client(self, **settings: Any) -> AdminClient:
        """For a test to look with."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0, **settings})

    def version(self) -> str:
        # The protocol does not tell; a given one is whatever it is.
        return "unknown" if self.given else VERSION

    def fresh(self) -> str:
        """A prefix of its own for every topic and group."""
        return f"{self.url}?prefix=t{uuid.uuid4().hex[:8]}.&group=unpoison"


ONE_SMALL_NODE = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Tests take over from consumers that were killed: seconds, not the six that are the least by default.
    "group.min.session.timeout.ms": "1000",
    # Segments are given their full size at once, and hundreds of topics would fill a small disk.
    "log.index.size.max.bytes": "65536",
}
TOOLS = Jars((f"org.apache.kafka:kafka-tools:{VERSION}", "org.slf4j:slf4j-simple:1.7.36"))
ARTIFACTS = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
PORTS = {"PLAINTEXT": "main", "SSL": "tls", "SASL_PLAINTEXT": "login", "SASL_SSL": "tls-login"}
"""By protocol: which port listens to it, where it is asked for."""
KAFKA = Entry("kafka", "UNPOISON_TEST_KAFKA_URL", Jars(ARTIFACTS), Kafka, ("controller", *PORTS.values()))
