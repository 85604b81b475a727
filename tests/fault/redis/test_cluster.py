"""A cluster of three real nodes: the hash tag in the name of a source holds its keys together, and a slot may move under it."""

import json

import pytest
import redis as client

from servers import ServerMissing
from servers.redis_cluster import cluster
from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from tests.fault.moved import moved
from tests.fault.redis.redis_parts import bodies, opened
from tests.servers_plugin import skip_or_fail
from unpoison import App
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.brokers.redis.deadletters import RedisDeadLetters
from unpoison.errors import ConfigError
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.port.broker import STORED, Depth, Settlement
from unpoison.testing import given
from unpoison.testing.running import drained

SOURCES = ["{orders}", "{refunds}:eu", "shop:{parcels}"]


@pytest.fixture(scope="module")
def nodes():
    try:
        with cluster() as nodes:
            yield nodes
    except ServerMissing as error:
        skip_or_fail("redis", error)


@pytest.fixture
def url(nodes):
    yield nodes[0].url
    for node in nodes:
        with node.client() as tool:
            tool.flushall()


@pytest.mark.servers("redis")
def test_sources_on_different_nodes_are_consumed_retried_dead_lettered_and_replayed(url, nodes):
    done: dict[str, list[int]] = {source: [] for source in SOURCES}
    may_work = []

    def handler(source):
        def handle(number: int, delivery: Delivery) -> None:
            if number == 2 and not may_work:
                raise ConnectionError("not now")
            if number == 1 and delivery.attempt == 1:
                raise ConnectionError("not now")
            done[source].append(number)

        return handle

    app = App(url)
    for source in SOURCES:
        given.consumer(app, source, handler(source), max_attempts=2, backoff=Backoff.immediate())
        app.publish_many(source, range(5))
        app.publish(source, 5, delay=0.1)
    drained(app)
    may_work.append(True)
    for source in SOURCES:
        assert sorted(done[source]) == [0, 1, 3, 4, 5]
        assert app.dlq(source).replay_all().count == 1
    drained(app)
    assert all(sorted(numbers) == [0, 1, 2, 3, 4, 5] for numbers in done.values())
    app.close()
    with client.RedisCluster.from_url(url) as look:
        assert len({look.get_node_from_key(source).port for source in SOURCES}) == 3


def test_a_source_without_a_hash_tag_is_refused_with_the_name_it_should_have(url):
    for source in ("orders", "{}orders", "orders}{"):
        with pytest.raises(ConfigError, match="has no hash tag"):
            RedisBroker(url).open([source])
    app = App(url)
    with pytest.raises(ConfigError, match=r"'\{orders\}'"):
        app.publish("orders", 1)
    app.close()


def test_a_batch_for_several_nodes_is_stored_on_each(url):
    with opened(url, *SOURCES) as broker:
        broker.publish([message for source in SOURCES for message in given.messages(source, 2)])
        assert [broker.depth(source) for source in SOURCES] == [Depth(ready=2)] * 3


def test_a_source_whose_slot_moves_to_another_node_goes_on_there(url, nodes):
    source = "{orders}"
    with opened(url, source) as broker:
        broker.publish(given.messages(source, 4))
        held = broker.fetch(source, 2)
        move(nodes, source)
        broker.settle(Settlement(gone=held[:1]))
        assert broker.depth(source) == Depth(ready=2, leased=1)
        assert bodies(broker.fetch(source, 10)) == [b"2", b"3"]
        broker.publish(given.messages(source, 1, first=9))
        assert bodies(broker.fetch(source, 10)) == [b"9"]


def test_a_letter_that_came_from_a_slot_of_another_node_is_sent_back_from_a_store(url, tmp_path):
    with opened(url, *SOURCES[:2]) as broker, client.RedisCluster.from_url(url) as tool:
        for target in SOURCES[:2]:
            tool.xadd("dlq:{orders}", {"body": json.dumps(ENVELOPE | {"original_topic": target})})
        letters = RedisDeadLetters(broker, "{orders}")
        assert letters.send_back(moved(letters, tmp_path)) == STORED
        assert [bodies(broker.fetch(source, 10)) for source in SOURCES[:2]] == [[BODY], [BODY]]


def move(nodes, source):
    """The slot of this source, with all its keys, from the node that has it to another one."""
    clients = [node.client() for node in nodes]
    slot = clients[0].execute_command("CLUSTER KEYSLOT", source)
    ids = [each.execute_command("CLUSTER MYID") for each in clients]
    (origin,) = [n for n, each in enumerate(clients) if each.execute_command("CLUSTER COUNTKEYSINSLOT", slot)]
    target = (origin + 1) % len(nodes)
    clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[origin])
    clients[origin].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    keys = clients[origin].execute_command("CLUSTER GETKEYSINSLOT", slot, 100)
    clients[origin].execute_command("MIGRATE", "127.0.0.1", nodes[target].port, "", 0, 5000, "KEYS", *keys)
    for each in (clients[target], clients[origin], *clients):
        each.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
    for each in clients:
        each.close()
