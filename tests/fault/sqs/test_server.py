"""The server is killed, frozen or away: nothing that it confirmed is lost, and consumers go on by themselves."""

import os
import signal
import threading
from collections import Counter

import pytest

from tests.contract.sqs_lab import SHORT_VISIBILITY, SQSLab
from tests.servers_plugin import private_or_skip
from unpoison.errors import BrokerUnavailable
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, Running, drained

pytestmark = [pytest.mark.long, pytest.mark.servers("elasticmq")]


@pytest.fixture(scope="module")
def server():
    with private_or_skip("elasticmq", settings={"storage": "yes"}) as server:
        yield server


@pytest.fixture
def lab(tmp_path, server):
    with SQSLab(server, tmp_path, visibility=SHORT_VISIBILITY) as lab:
        yield lab


def test_what_was_published_retried_and_dead_lettered_survives_a_kill_of_the_server(lab, server):
    def handle(number: int, delivery: Delivery) -> None:
        if number == 0:
            raise ValueError("poison")
        raise ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(3600))
    app.publish_many("orders", [0, 1])
    failed = threading.Event()
    with Journal(dead=failed.set) as journal, Running(app):
        assert failed.wait(30)
        journal.wait_for("retry")
    app.publish("orders", 2)
    app.close()
    server.kill_hard()
    server.start()
    depth = lab.broker("orders").depth("orders")
    assert (depth.ready, depth.delayed, depth.dead) == (1, 1, 1)
    assert [letter.body for letter in lab.dlq("orders").letters()] == [b"0"]


def test_a_running_consumer_goes_on_after_a_kill_of_the_server(lab, server):
    handled: Counter[int] = Counter()
    half = threading.Event()

    def handle(number: int) -> None:
        handled[number] += 1
        if len(handled) >= 100:
            half.set()

    app = given.consumer(lab.app(prefetch=20), "orders", handle)
    app.publish_many("orders", range(200))
    with Journal() as journal, Running(app):
        assert half.wait(60)
        server.kill_hard()
        journal.wait_for("pause")
        server.start()
        wait_until(lambda: len(handled) == 200, lambda: f"Only {len(handled)} of 200 were handled")
    drained(app)
    assert lab.dlq("orders").count() == 0


def test_publishing_to_a_server_that_is_away_fails_at_once_and_says_where(lab, server):
    app = lab.app()
    app.publish("orders", 1)
    with server.down(), pytest.raises(BrokerUnavailable, match=f"SQS at http://127.0.0.1:{server.port}"):
        app.publish("orders", 2)
    app.publish("orders", 3)
    assert lab.broker("orders").depth("orders").ready == 2


def test_a_consumer_whose_server_was_frozen_for_longer_than_its_messages_were_its_own_says_so_and_goes_on(lab, server):
    started, may_end = threading.Event(), threading.Event()
    starts: list[bool] = []

    def handle(number: int, delivery: Delivery) -> None:
        starts.append(delivery.returned)
        started.set()
        assert may_end.wait(60)

    app = given.consumer(lab.app(), "orders", handle, isolation="thread", concurrency=1)
    app.publish("orders", 1)
    process = server.server_process().pid
    with Journal() as journal, Running(app):
        assert started.wait(30)
        os.kill(process, signal.SIGSTOP)
        try:
            journal.wait_for("ownership-lost")
        finally:
            os.kill(process, signal.SIGCONT)
        may_end.set()
        wait_until(lambda: len(starts) == 2, lambda: f"It was started {len(starts)} times")
    assert starts == [False, True]
