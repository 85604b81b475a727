"""A server that stops answering while a whole DLQ is replayed: the command ends, says how far it came, and nothing is lost."""

import os
import signal
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from unpoison import App, BulkStopped, deadletters
from unpoison.brokers.kafka import cluster_queries
from unpoison.brokers.kafka import connection as kafka_connection
from unpoison.brokers.kafka import settings as kafka_settings
from unpoison.brokers.nats import connection as nats_connection
from unpoison.brokers.nats import stream_reading, writing
from unpoison.brokers.postgresql import connection
from unpoison.testing import given
from unpoison.testing.running import drained

LETTERS, PAGE = 60, 20
SHORT = 2.0


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr(deadletters, "PAGE", PAGE)
    monkeypatch.setattr(connection, "ANSWER_WITHIN", SHORT)
    monkeypatch.setattr(nats_connection.Connection.wait, "__defaults__", (SHORT,))
    monkeypatch.setattr(stream_reading, "ANSWER_TIMEOUT", SHORT)
    monkeypatch.setattr(writing, "CONFIRM_TIMEOUT", SHORT)
    monkeypatch.setattr(cluster_queries, "REQUEST_TIMEOUT", SHORT)
    monkeypatch.setattr(cluster_queries, "AGREED_WITHIN", SHORT)
    monkeypatch.setattr(kafka_connection, "SILENT_FOR", SHORT)
    monkeypatch.setattr(kafka_settings, "STORED_WITHIN", SHORT)


def processes_of(server):
    """Its process, and all below it: each connection to PostgreSQL is served by one of its own."""
    found = [server.server_process().pid]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


@contextmanager
def going_on(server):
    """A frozen server that is woken at the end of the block, whatever happens."""
    frozen = []

    def freeze():
        if not frozen:
            frozen.extend(processes_of(server))
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)

    try:
        yield freeze
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


OPTIONS = {"redis": "?socket_timeout=2", "kafka": "&group=billing"}


@pytest.mark.long
@pytest.mark.parametrize("broker", ["postgresql", "redis", "nats", "kafka"])
def test_a_server_that_freezes_in_the_middle_ends_the_replay_with_how_far_it_came(broker, private_server):
    server = private_server(broker)
    url = server.fresh() + OPTIONS.get(broker, "")
    fill(url)
    with closing(App(url)) as app, going_on(server) as freeze:
        dlq = app.dlq("orders")
        dlq.page = PAGE
        with pytest.raises(BulkStopped, match=r"^Replayed 20 of 60 dead letters of 'orders', then it stopped: "):
            dlq.replay_all(progress=lambda done, total: freeze())
    with closing(App(url)) as app:
        app.dlq("orders").replay_all()  # whatever was begun is finished
        assert sorted(handled(url)) == list(range(LETTERS))
        assert app.dlq("orders").count() == 0


def fill(url):
    app = App(url)

    def fail(number: int) -> None:
        raise ValueError("no")

    given.consumer(app, "orders", fail)
    app.publish_many("orders", range(LETTERS))
    drained(app)
    app.close()


def handled(url):
    received = []

    def handle(number: int) -> None:
        received.append(number)

    app = App(url)
    drained(given.consumer(app, "orders", handle))
    app.close()
    return received
