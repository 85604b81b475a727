"""Questions about groups, which end the process that asks them when a server goes in that moment, end none that matters."""

import os
import resource
import signal
import sys
import weakref

import pytest

from unpoison.brokers.kafka import cluster_queries
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.url import address
from unpoison.errors import BrokerUnavailable
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import Child, Gate


@pytest.fixture
def connection(lab):
    connection = Connection(address(lab.url))
    yield connection
    connection.close()


def asking(connection):
    return connection.queries._members._process.pid


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_who_is_in_a_group_is_asked_again_when_the_process_that_asks_has_crashed(lab, connection):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    assert broker.fetch("orders", 1)
    names = connection.names("orders")
    assert connection.queries.members(names.group) == {broker.connection.name}
    assert connection.queries.topics_of_others(names.group) == {names.topic}
    os.kill(asking(connection), signal.SIGABRT)
    assert connection.queries.members(names.group) == {broker.connection.name}


def test_nobody_is_in_a_group_that_never_was(connection):
    assert connection.queries.members("nobody") == set()
    assert connection.queries.committed("nobody", [("nothing", 0)]) == {}


def test_the_process_that_asks_ends_with_whoever_it_asks_for(connection):
    connection.queries.members("nobody")
    pid = asking(connection)
    connection.close()
    assert not is_there(pid)


def test_the_process_that_asks_ends_when_whoever_it_asks_for_is_killed(lab, tmp_path):
    asked = Gate("asked")

    def ask():
        connection = Connection(address(lab.url))
        connection.queries.members("nobody")
        (tmp_path / "pid").write_text(str(asking(connection)))
        asked.open()
        Gate("never").wait()

    with Child(ask) as child:
        asked.wait()
        pid = int((tmp_path / "pid").read_text())
        assert is_there(pid)
        child.kill()
    wait_until(lambda: not is_there(pid), lambda: "it still runs")


def test_where_no_process_can_be_started_that_is_said(connection, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(BrokerUnavailable, match=r"No process can be started to ask Kafka who is in a group: .*nowhere"):
        connection.queries.members("nobody")


def test_it_is_asked_by_processes_with_many_open_files(connection):
    """select() knows only the first 1,024 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    many = [os.dup(0) for _ in range(1100)]
    try:
        assert connection.queries.members("nobody") == set()
    finally:
        for each in many:
            os.close(each)
        connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_whoever_looks_at_many_groups_keeps_a_few_clients_only(connection):
    for number in range(2 * cluster_queries.MAX_CLIENTS):
        connection.queries.committed(f"group-{number}", [("nothing", 0)])
    assert list(connection.queries._offsets._clients) == [
        f"group-{number}" for number in range(cluster_queries.MAX_CLIENTS, 2 * cluster_queries.MAX_CLIENTS)
    ]


def test_a_session_that_nobody_has_any_more_is_gone_at_once(lab):
    """Its clients must not be left to the garbage collector, which may find them in a forked process and wait there for ever."""
    connection = Connection(address(lab.url))
    connection.queries.committed("nobody", [("nothing", 0)])
    gone = weakref.ref(connection)
    del connection
    assert gone() is None
