"""Three servers that keep everything thrice: one is killed, then a second one, and nothing that was confirmed is lost."""

import re
import threading
from collections import Counter

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from servers import ServerMissing
from servers.kafka_cluster import cluster
from tests.contract.kafka_lab import KafkaLab
from tests.servers_plugin import skip_or_fail
from unpoison.brokers import findings_for
from unpoison.brokers.kafka.topology import replica_count
from unpoison.errors import BrokerUnavailable, Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import PATIENCE, Child, Gate
from unpoison.testing.running import Journal, Running

pytestmark = [pytest.mark.long, pytest.mark.servers("kafka")]

MANY = 300
POISON = range(1, MANY, 25)
FAIL_ONCE = range(0, MANY, 10)


@pytest.fixture(scope="module")
def servers():
    try:
        with cluster() as servers:
            yield servers
    except ServerMissing as error:
        skip_or_fail("kafka", error)


@pytest.fixture
def lab(tmp_path, servers):
    # As people have it who ask for nothing: servers need longer to agree on a new leader than such a session lasts.
    try:
        with KafkaLab(servers, tmp_path, session_timeout=6.0) as lab:
            yield lab
    finally:
        for node in servers.nodes.values():
            node.start()  # for the next test, whatever became of this one


class Draining:
    """An app that handles many messages, some of them twice and some never, and waits in the middle until it is told to go on."""

    def __init__(self, lab) -> None:
        self.done: Counter[int] = Counter()
        self.half, self.go_on = threading.Event(), threading.Event()
        self.app = lab.app(prefetch=20)
        given.consumer(self.app, "orders", self.handle, isolation="thread", concurrency=1, backoff=Backoff.immediate())
        self.names = lab.broker("orders").connection.names("orders")

    def handle(self, number: int, delivery: Delivery) -> None:
        if number in FAIL_ONCE and delivery.attempt == 1:
            raise ConnectionError("not now")
        if number in POISON:
            raise Permanent("no")
        self.done[number] += 1
        if len(self.done) == MANY // 2:
            self.half.set()
            assert self.go_on.wait(PATIENCE)

    def handled_all(self) -> bool:
        return set(self.done) >= set(range(MANY)) - set(POISON)


def letters(lab):
    return sorted(int(letter.body) for letter in lab.dlq("orders").letters())


@pytest.mark.parametrize("then", ["stays away", "comes back at once"])
def test_the_leader_of_a_partition_is_killed_while_that_is_drained(lab, servers, then):
    draining = Draining(lab)
    draining.app.publish_many("orders", range(MANY))
    with Running(draining.app, until_empty=True) as running:
        assert draining.half.wait(PATIENCE)
        leader = servers.leader(draining.names.topic)
        leader.kill_hard()
        draining.go_on.set()
        if then == "comes back at once":
            leader.start()
        running.wait()
    assert draining.handled_all()
    assert letters(lab) == list(POISON)


@pytest.mark.parametrize("session_timeout", ["6.0", "20.0"], ids=["longer than a session", "within a session"])
def test_the_coordinator_of_a_group_is_killed_while_retries_and_dead_letters_are_written(lab, servers, session_timeout):
    lab.url = lab.url.replace("session_timeout=6.0", f"session_timeout={session_timeout}")
    draining = Draining(lab)
    draining.app.publish_many("orders", range(MANY))
    with Journal() as journal, Running(draining.app, until_empty=True) as running:
        assert draining.half.wait(PATIENCE)
        servers.coordinator(draining.names.group).kill_hard()
        draining.go_on.set()
        running.wait()
    assert draining.handled_all()
    assert letters(lab) == list(POISON)
    if session_timeout == "20.0":  # until the others have noticed, by default 9 s
        assert journal.of("ownership-lost") == []
        assert max(draining.done.values()) <= 2, "the commit of one that was done may die with its coordinator"


@pytest.mark.timeout(240)
def test_with_too_few_servers_nothing_counts_as_stored_and_it_goes_on_when_one_is_back(lab, servers):
    draining = Draining(lab)
    draining.app.publish_many("orders", range(MANY))
    with Journal() as journal, Running(draining.app) as running:
        assert draining.half.wait(PATIENCE)
        one, other, _ = servers.nodes.values()
        one.kill_hard()
        other.kill_hard()
        draining.go_on.set()
        with pytest.raises(BrokerUnavailable, match=r"partition 0 of '\S+orders' has 1 of its 3 copies in sync"):
            unconfirmed_until_told(lab)
        journal.wait_for("pause")
        one.start()
        wait_until(lambda: draining.handled_all() or not running._thread.is_alive(), lambda: f"{len(draining.done)} are done")
        wait_until(lambda: letters(lab) == list(POISON), lambda: f"{letters(lab)} are dead letters")
    assert draining.handled_all()


def unconfirmed_until_told(lab):
    """One that is not confirmed just after the kill may not say why: the servers have not noticed yet who is gone."""
    for number in range(3):
        try:
            lab.app().publish("orders", MANY + number, id="unconfirmed")
        except BrokerUnavailable as error:
            if "in sync" in str(error):
                raise


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["restarted in order", "killed"])
def test_whoever_asks_about_groups_outlives_servers_that_go_and_come(lab, servers, how):
    """librdkafka's own questions about groups end the process that asks when the server of a group goes in that moment."""
    lab.app().publish_many("orders", range(3))
    asking, enough = Gate("asking"), Gate("enough")
    with Child(lambda: ask_all_the_time(lab, asking, enough)) as child:
        asking.wait()
        for node in servers.nodes.values():
            if how == "killed":
                node.kill_hard()
                assert lab.broker("orders").depth("orders").ready == 3  # the others have agreed on who answers now
            else:
                node.stop()
            node.start()
        enough.open()
        assert child.wait() == 0


def ask_all_the_time(lab, asking, enough):
    connection = lab.broker("orders").connection
    topic, failed = connection.names("orders").topic, []

    def ask(question):
        while not enough.is_open():
            try:
                question()
            except BrokerUnavailable as error:  # it may take longer than somebody waits for whom nothing else is there to do
                failed.append(error)

    groups = [f"{lab.url[-9:]}{number}" for number in range(6)]  # at different servers
    questions = [lambda group=group: connection.queries.committed(group, [(topic, 0)]) for group in groups]
    questions += [lambda group=group: connection.queries.members(group) for group in groups]
    threads = [threading.Thread(target=ask, args=(question,)) for question in questions]
    for thread in threads:
        thread.start()
    asking.open()
    for thread in threads:
        thread.join()
    assert len(failed) < 100, failed[:10]


def test_topics_that_are_made_are_on_as_many_servers_as_is_usual_there(lab, servers):
    names = lab.broker("orders").connection.names("orders")
    assert replicas(servers, names) == [3, 3, 3, 3]


def test_topics_that_are_made_beside_a_source_are_on_as_many_servers_as_it_is(lab, servers):
    source = lab.broker("others").connection.names("orders")
    made(servers, NewTopic(source.topic, 1, 2))
    lab.broker("orders")
    assert replicas(servers, source) == [2, 2, 2, 2]


def test_a_number_of_replicas_in_the_url_counts(lab, servers):
    lab.url += "&replicas=1"
    names = lab.broker("orders").connection.names("orders")
    assert replicas(servers, names) == [1, 1, 1, 1]


def test_topics_on_fewer_servers_than_their_source_are_told_until_they_are_on_as_many(lab, servers):
    names = lab.broker("others").connection.names("orders")
    made(servers, NewTopic(names.topic, 1, 3))
    url, lab.url = lab.url, f"{lab.url}&replicas=1"
    lab.broker("orders")
    lab.url = url
    found = soon(lab, *["fewer-copies"] * 3)
    assert all(each.loses for each in found)
    for topic, finding in zip(names.topics[1:], found, strict=True):
        assert f"{topic!r} is on 1 server and {names.topic!r} on 3 servers" in finding.problem
        assert finding.fix.startswith("kafka-reassign-partitions.sh --execute --reassignment-json-file copies.json, ")
        node = servers.nodes[1]
        node.write("copies.json", finding.fix[finding.fix.index("{") :])
        how = ("--execute", "--reassignment-json-file", str(node.folder / "copies.json"))
        assert "Successfully started" in node.tool("reassign.ReassignPartitionsCommand", *how)
    soon(lab)
    assert replicas(servers, names) == [3, 3, 3, 3]


def test_a_dlq_that_stores_on_fewer_servers_than_its_source_is_told_until_it_does_not(lab, servers):
    names = lab.broker("orders").connection.names("orders")
    alter(servers, names.dlq, "min.insync.replicas", "1")
    (finding,) = soon(lab, "fewer-in-sync")
    assert finding.loses
    told = re.search(r"--entity-name (\S+) --add-config (\S+)=(\S+)", finding.fix)
    assert told is not None
    alter(servers, *told.groups())
    soon(lab)


def replicas(servers, names):
    client, seen = servers.client(), {}

    def are_known():  # a server that did not make them learns of them a moment later
        seen.update(client.list_topics(timeout=10).topics)
        return {*names.topics} <= seen.keys()

    wait_until(are_known, lambda: f"{sorted(seen)} are known")
    return [replica_count(seen[name]) for name in names.topics]


def soon(lab, *wanted):
    """The findings once they are these: servers learn of a change a moment later."""
    seen = []

    def are_these():
        seen[:] = findings_for(lab.url, ["orders"])
        return [each.name for each in seen] == [*wanted]

    wait_until(are_these, lambda: f"{seen} is found")
    return seen


def made(servers, topic):
    client = servers.client()
    for answer in client.create_topics([topic]).values():
        answer.result(10)


def alter(servers, topic, name, value):
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    client = servers.client()
    for answer in client.incremental_alter_configs([resource]).values():
        answer.result(10)
