"""The server is killed, frozen, or gone for a while: nothing is lost, nobody waits without a limit, and it goes on by itself."""

import os
import signal
import threading
from collections import Counter
from contextlib import contextmanager

import pytest

from tests.contract.kafka_lab import KafkaLab
from tests.servers_plugin import private_or_skip
from unpoison.brokers.kafka import errors
from unpoison.errors import BrokerUnavailable, Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import PATIENCE
from unpoison.testing.running import Journal, Running, drained

pytestmark = [pytest.mark.long, pytest.mark.servers("kafka")]


@pytest.fixture(scope="module")
def server():
    with private_or_skip("kafka") as server:
        yield server


@pytest.fixture
def lab(tmp_path, server):
    with KafkaLab(server, tmp_path) as lab:
        yield lab


@contextmanager
def frozen(server):
    process = server.server_process()
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def test_what_was_confirmed_survives_a_kill_of_the_server(lab, server):
    broker = lab.broker("orders")
    broker.publish([*given.messages("orders", 6), *given.messages("orders", 1, first=100, delay=3600)])
    held = broker.fetch("orders", 10)
    kept = [Kept(held[1], Counters(attempts=2)), Kept(held[2], Counters(attempts=1), 3600.0)]
    broker.settle(Settlement(gone=[held[3]], kept=kept, dead=[Dead(held[0], given.letter_of(held[0]))]))
    for member in broker._subscriptions["orders"].members:
        member.commits.require()  # settling does not wait for it while others run
    with server.down():
        pass
    other = lab.broker("orders")
    broker.close()
    found: dict[bytes, Counters] = {}

    def all_came() -> bool:
        found.update((each.body, each.counters) for each in other.fetch("orders", 10))
        return {b"1", b"4", b"5"} <= found.keys()

    wait_until(all_came, lambda: f"Only {sorted(found)} came")
    assert found[b"1"].attempts == 2
    assert found.keys() == {b"1", b"4", b"5"}
    assert other.depth("orders").delayed == 2


def test_a_consumer_goes_on_after_a_kill_of_the_server(lab, server):
    done: Counter[int] = Counter()
    half, again = threading.Event(), threading.Event()

    def handle(number: int, delivery: Delivery) -> None:
        if number % 10 == 0 and delivery.attempt == 1:
            raise ConnectionError("not now")
        if number % 25 == 1:
            raise Permanent("no")
        done[number] += 1
        if len(done) == 50:
            half.set()
            assert again.wait(PATIENCE)

    app = given.consumer(lab.app(prefetch=20), "orders", handle, isolation="thread", concurrency=1, backoff=Backoff.immediate())
    app.publish_many("orders", range(200))
    with Running(app, until_empty=True) as running:
        assert half.wait(PATIENCE)
        server.kill_hard()
        again.set()
        server.start()
        running.wait()
    assert set(done) == {number for number in range(200) if number % 25 != 1}
    assert {letter.body for letter in lab.dlq("orders").letters()} == {str(n).encode() for n in range(1, 200, 25)}


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_consumer_that_has_nothing_to_do_tells_that_nobody_is_there_and_goes_on(lab, server, how, monkeypatch):
    monkeypatch.setattr(errors, "GONE_FOR", 1.0)
    handled: list[int] = []
    app = given.consumer(lab.app(), "orders", handled.append, schema=int, isolation="thread")
    app.publish("orders", 1)
    with Journal() as journal, Running(app):
        wait_until(lambda: handled == [1], lambda: f"{handled} were handled")
        with server.down() if how == "killed" else frozen(server):
            journal.wait_for("pause")
        assert "No Kafka server at kafka://127.0.0.1" in journal.of("pause")[0]
        assert "has answered for 1 s: " in journal.of("pause")[0]
        journal.wait_for("resume")
        lab.app().publish("orders", 2)
        wait_until(lambda: 2 in handled, lambda: f"{handled} were handled")


def test_a_message_that_a_server_has_not_confirmed_in_time_is_unknown(lab, server):
    lab.url += "&delivery.timeout.ms=1500&request.timeout.ms=1000"
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 1))
    with frozen(server):
        outcome = broker.publish(given.messages("orders", 3, first=1))
    assert (set(outcome.unknown), dict(outcome.refused)) == ({0, 1, 2}, {})
    assert "did not confirm it" in outcome.unknown[0]


def test_a_frozen_server_stops_a_consumer_for_a_limited_time_and_then_it_goes_on(lab, server):
    lab.url = lab.url.replace("session_timeout=1.0", "session_timeout=60")  # or it is taken for dead, by a server that was
    broker = lab.broker("orders", ring=lambda: None)
    broker.publish(given.messages("orders", 3))
    held: list[Delivery] = []
    while len(held) < 3:
        held += broker.fetch("orders", 10)
    with frozen(server), pytest.raises(BrokerUnavailable):
        broker.settle(Settlement(kept=[Kept(each, Counters(attempts=1)) for each in held]))
    broker.settle(Settlement(kept=[Kept(each, Counters(attempts=1)) for each in held]))
    handled: list[int] = []
    broker.close()
    drained(given.consumer(lab.app(), "orders", handled.append, schema=int))
    assert set(handled) == {0, 1, 2}


def test_what_is_done_while_the_server_is_frozen_is_noted_when_it_answers(lab, server):
    lab.url = lab.url.replace("session_timeout=1.0", "session_timeout=60")
    broker, held = lab.broker("orders", ring=lambda: None), []
    broker.publish(given.messages("orders", 3))
    wait_until(lambda: held.extend(broker.fetch("orders", 10)) or len(held) == 3, lambda: f"Only {len(held)} came")
    with frozen(server):
        broker.settle(Settlement(gone=held))
        with pytest.raises(BrokerUnavailable, match="has confirmed no commit"):
            wait_until(lambda: broker.fetch("orders", 10), lambda: "Nobody told that nothing is confirmed")
    wait_until(lambda: broker.depth("orders").empty, lambda: str(broker.depth("orders")))


def test_what_runs_while_its_partition_is_given_back_to_a_frozen_server_stays_with_whoever_runs_it(lab, server):
    lab.url = lab.url.replace("session_timeout=1.0", "session_timeout=30")
    broker, held = lab.broker("orders", ring=lambda: None), []
    broker.publish(given.messages("orders", 3))
    wait_until(lambda: held.extend(broker.fetch("orders", 1)) or held, lambda: "Nothing came")
    part = held[0].receipt.partition
    with frozen(server):
        # It is fetched no more, so the two others are left to the group: it cannot be told that the first one runs.
        wait_until(lambda: part.is_revoked, lambda: "It keeps what nobody fetches")
        refused = threading.Event()
        store = broker.connection.store
        broker.connection.store = lambda *copies: [store(*copies), refused.set()][0]
        assert refused.wait(PATIENCE)
    wait_until(lambda: part.is_lost, lambda: "The partition is not given back")
    broker.settle(Settlement(gone=held))
    handled: list[int] = []
    broker.close()
    drained(given.consumer(lab.app(), "orders", handled.append, schema=int))
    assert sorted(handled) == [1, 2]


@pytest.mark.timeout(240)
def test_a_consumer_outlives_a_server_that_is_gone_for_a_minute(lab, server):
    started, done = threading.Event(), []

    def handle(number: int) -> None:
        started.set()
        done.append(number)

    app = given.consumer(lab.app(), "orders", handle)
    app.publish_many("orders", range(10))
    with Journal() as journal, Running(app) as running:
        assert started.wait(PATIENCE)
        server.kill_hard()
        threading.Event().wait(60)  # that long is what is promised
        server.start()
        lab.app().publish("orders", 10)
        while 10 not in done:
            assert running._thread.is_alive()
            threading.Event().wait(0.1)
    assert set(done) == set(range(11))
    assert journal.of("ownership-lost") == [] or Counter(done).most_common(1)[0][1] <= 2
