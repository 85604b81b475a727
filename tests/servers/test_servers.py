"""Do the servers for the tests start, answer, come back after kill -9 with their data, and leave nothing behind?"""

import asyncio
from contextlib import closing
from typing import Any

import nats
import pika
import pika.exceptions
import psycopg
import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition

import servers
from servers import Server, ServerFailed, ServerMissing
from servers.processes import Process
from servers.prometheus import Prometheus
from tests.servers_plugin import private_or_skip
from unpoison.testing.isolation.diary import wait_until

pytestmark = [
    pytest.mark.servers("postgresql", "pgbouncer", "rabbitmq", "rabbitmq-4", "redis", "redis-8", "nats", "nats-2.9", "kafka"),
    pytest.mark.servers("prometheus"),
    pytest.mark.timeout(600),
]


class Row:
    """Something that PostgreSQL must not forget."""

    def __init__(self, server: Server) -> None:
        self.url = server.fresh()
        with psycopg.connect(self.url) as run:
            run.execute("create table kept as select 'here' as what")

    def read(self) -> str:
        with psycopg.connect(self.url) as run:
            return run.execute("select what from kept").fetchone()[0]


class Queued:
    """Something that RabbitMQ must not forget: a confirmed message in a classic queue."""

    def __init__(self, server: Server) -> None:
        self.url = server.fresh()
        with closing(pika.BlockingConnection(pika.URLParameters(self.url))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("kept", durable=True)
            channel.basic_publish("", "kept", b"here", pika.BasicProperties(delivery_mode=2), mandatory=True)

    def read(self) -> str:
        """Looks at the message and leaves it there."""
        with closing(pika.BlockingConnection(pika.URLParameters(self.url))) as connection:
            return connection.channel().basic_get("kept")[2].decode()


class Stored:
    """Something that Redis must not forget."""

    def __init__(self, server: Server) -> None:
        self.url = server.fresh()
        with redis.Redis.from_url(self.url) as connection:
            connection.set("kept", "here")

    def read(self) -> str:
        with redis.Redis.from_url(self.url) as connection:
            return connection.get("kept").decode()


class Streamed:
    """Something that NATS must not forget."""

    def __init__(self, server: Server) -> None:
        self.url = server.fresh()
        asyncio.run(self._store())

    async def _store(self) -> None:
        connection = await nats.connect(self.url, allow_reconnect=False)
        await connection.jetstream().add_stream(name="kept", subjects=["kept"])
        await connection.jetstream().publish("kept", b"here")
        await connection.close()

    def read(self) -> str:
        return asyncio.run(self._stored())

    async def _stored(self) -> str:
        connection = await nats.connect(self.url, allow_reconnect=False, max_reconnect_attempts=1)
        try:
            return (await connection.jsm().get_msg("kept", 1)).data.decode()
        finally:
            await connection.close()


class Logged:
    """Something that Kafka must not forget."""

    def __init__(self, server: Server) -> None:
        self.servers = {"bootstrap.servers": server.url.removeprefix("kafka://")}
        producer = Producer({**self.servers, "enable.idempotence": True})
        producer.produce("kept", b"here")
        assert producer.flush(30) == 0

    def read(self) -> str:
        settings = {**self.servers, "group.id": "looks", "socket.timeout.ms": 2_000, "log_level": 0}
        with closing(Consumer(settings)) as consumer:
            consumer.assign([TopicPartition("kept", 0, 0)])
            record = consumer.poll(10)
            if record is None or record.error():
                raise OSError("Kafka does not answer")
            return record.value().decode()


class Scraped:
    """Something that Prometheus must not forget: that it has seen itself."""

    def __init__(self, server: Prometheus) -> None:
        self.server = server
        server.scrape([server.url.removeprefix("http://")])
        wait_until(lambda: server.api("query", query="up == 1")["result"], lambda: "Prometheus has not scraped itself")
        self.moment = str(server.api("query", query="timestamp(up)")["result"][0]["value"][1])

    def read(self) -> str:
        found = self.server.api("query", query="up", time=self.moment)["result"]
        return "here" if found else "forgotten"


KEPT: dict[str, Any] = {
    "postgresql": Row,
    "pgbouncer": Row,
    "rabbitmq": Queued,
    "rabbitmq-4": Queued,
    "redis": Stored,
    "redis-8": Stored,
    "nats": Streamed,
    "nats-2.9": Streamed,
    "kafka": Logged,
    "prometheus": Scraped,
}
SLOW = {"rabbitmq", "rabbitmq-4", "kafka"}
"""Their starts take half a minute here; that they come back is tried in tests/fault, for RabbitMQ every day."""

FORGETFUL = {"elasticmq", "moto"}
"""They keep everything in memory, unless told otherwise: test_sqs.py."""
UNREACHABLE = (psycopg.OperationalError, pika.exceptions.AMQPConnectionError, redis.ConnectionError, OSError, nats.errors.Error)


def family(server: Server) -> set[Process]:
    """Every process of a server, with children."""
    return {each for process in server.processes.values() for each in process.family()}


def test_every_server_is_tried_here():
    assert set(KEPT) | FORGETFUL == set(servers.ENTRIES)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in KEPT])
def test_it_answers_comes_back_with_its_data_after_a_kill_and_a_stop_and_leaves_no_process(name):
    with private_or_skip(name) as server:
        kept = KEPT[name](server)
        assert kept.read() == "here"
        port, seen = server.port, family(server)
        assert seen

        server.kill_hard()
        assert not server.running
        with pytest.raises(UNREACHABLE):
            kept.read()
        server.start()
        assert (server.port, kept.read()) == (port, "here")

        seen |= family(server)
        server.stop()
        assert [process for process in seen if process.alive] == []
        server.start()
        assert kept.read() == "here"
        seen |= family(server)
        folder = server.folder
    assert [process for process in seen if process.alive] == []
    assert not folder.exists()


def test_pgbouncer_pools_transactions(pgbouncer):
    """What is set for a session does not stay with it: the trap that the broker has to live with."""
    with psycopg.connect(pgbouncer.fresh(), autocommit=True) as one:
        [(name,)] = one.execute("select current_database()").fetchall()
        assert name.startswith("test_")
    if not pgbouncer.given:
        assert "pool_mode = transaction" in (pgbouncer.folder / "pgbouncer.ini").read_text()


def test_settings_are_kept_over_restarts(private_server):
    server = private_server("postgresql", settings={"deadlock_timeout": "7s"})
    server.stop()
    server.start({"work_mem": "1MB"})
    with psycopg.connect(server.url) as run:
        found = [run.execute(f"show {name}").fetchone()[0] for name in ("deadlock_timeout", "work_mem")]
    assert found == ["7s", "1MB"]


def test_a_server_that_does_not_start_says_why(private_server):
    with pytest.raises(
        ServerFailed, match=r'(?s)postgresql ended while it was starting.*unrecognized configuration parameter "nonsense"'
    ):
        private_server("postgresql", settings={"nonsense": "1"})


def test_rabbitmqctl_reaches_the_server(rabbitmq):
    if rabbitmq.given:
        pytest.skip("rabbitmqctl is for servers that were started here")
    assert "guest" in rabbitmq.ctl("list_users", "--silent")
    with pytest.raises(ServerFailed, match="nonsense"):
        rabbitmq.ctl("nonsense")


def test_the_two_rabbitmqs_are_different_versions(rabbitmq, rabbitmq_4):
    assert rabbitmq_4.version().startswith("4.")
    assert rabbitmq.version() != rabbitmq_4.version()


def test_fresh_places_do_not_see_each_other(rabbitmq):
    assert Queued(rabbitmq).read() == "here"
    with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq.fresh()))) as connection:
        channel = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue 'kept'"):
            channel.queue_declare("kept", passive=True)


def test_an_address_in_a_variable_is_used_as_it_is_and_never_stopped(postgresql, tmp_path):
    owner = servers.Owner.own(tmp_path)
    given = servers.shared("postgresql", owner, {"UNPOISON_TEST_POSTGRESQL_URL": postgresql.url})
    assert given.url == postgresql.url
    assert Row(given).read() == "here"
    for forbidden in (given.stop, given.kill_hard, given.start):
        with pytest.raises(ServerMissing, match="Unset UNPOISON_TEST_POSTGRESQL_URL to have a private one"):
            forbidden()
    assert given.answers()
    assert list(tmp_path.iterdir()) == []
