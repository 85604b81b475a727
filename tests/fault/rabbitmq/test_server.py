"""What if RabbitMQ is restarted, killed, out of memory or loses a queue under a consumer? Nothing is lost and nothing spins."""

import threading
import time
from collections import Counter

import pika
import pytest

from tests.contract.rabbitmq_lab import RabbitMQLab
from tests.fault.scenes import consumed_through_a_restart
from tests.servers_plugin import private_or_skip
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.errors import BrokerUnavailable, OwnershipLost, Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.port.broker import Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import PATIENCE
from unpoison.testing.running import Journal, Running, drained

OLD_ENOUGH = 2.0
"""Seconds after which a quorum queue survives a kill of its server: a younger one may come back empty (RabbitMQ itself)."""


@pytest.fixture(scope="module", params=["rabbitmq", pytest.param("rabbitmq-4", marks=pytest.mark.long)])
def server(request):
    with private_or_skip(request.param) as server:
        yield server


@pytest.fixture
def lab(tmp_path, server):
    with RabbitMQLab(server, tmp_path) as lab:
        yield lab


def raw(lab):
    connection = pika.BlockingConnection(pika.URLParameters(lab.url))
    return connection, connection.channel()


STOPS = [
    pytest.param(lambda server: server.stop(), id="restart", marks=pytest.mark.long),
    pytest.param(lambda server: server.kill_hard(), id="kill -9"),
]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("stop", STOPS)
def test_a_consumer_outlives_its_server_and_no_message_is_lost(lab, server, stop):
    def restart():
        stop(server)
        server.start()

    def wait_until_stored():
        time.sleep(OLD_ENOUGH)

    with Journal() as journal:
        app = lab.app(prefetch=16)
        done = consumed_through_a_restart(app, restart, delay=5, within=120, published=wait_until_stored)
    assert journal.of("ownership-lost") or journal.of("pause")
    assert max(Counter(done).values()) <= 2
    assert lab.dlq("orders").count() == 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "count", [pytest.param(2_000, marks=pytest.mark.long), pytest.param(200_000, marks=pytest.mark.proof)], ids="{:,}".format
)
def test_a_backlog_that_a_killed_server_flags_is_drained_in_batches(lab, server, count):
    connection, channel = raw(lab)
    channel.queue_declare("orders", durable=True)  # classic: after a kill every message in it is flagged
    connection.close()
    app = lab.app()
    for first in range(0, count, 10_000):
        app.publish_many("orders", range(first, min(count, first + 10_000)))
    app.close()
    time.sleep(OLD_ENOUGH)
    server.kill_hard()
    server.start()
    seen: list[Delivery] = []

    def handle(number: int, delivery: Delivery) -> None:
        seen.append(delivery)

    with Running(given.consumer(lab.app(), "orders", handle), until_empty=True):
        wait_until(lambda: len(seen) >= count, lambda: f"{len(seen)} of {count} came", 600)
    assert Counter(int(delivery.body) for delivery in seen) == Counter(range(count))
    assert {(delivery.counters.vanished, delivery.counters.alone) for delivery in seen} == {(1, False)}


@pytest.mark.long
def test_while_the_server_is_gone_publishing_says_so_at_once(lab, server):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    (held,) = broker.fetch("orders", 1)
    server.stop()
    try:
        with pytest.raises(BrokerUnavailable):
            given.publish(broker, given.messages("orders", 1))
        with pytest.raises(OwnershipLost):
            broker.settle(Settlement(gone=[held]))
        with pytest.raises(BrokerUnavailable):
            broker.fetch("orders", 1)
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            RabbitMQBroker(lab.url).open(["orders"])
    finally:
        server.start()
    assert [delivery.body for delivery in broker.fetch("orders", 10)] == [b"0"]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_memory_alarm_stops_copies_but_no_acknowledgement(lab, server):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 3))
    held = broker.fetch("orders", 3)
    server.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        outcome = broker.publish(given.messages("orders", 1, first=10))
        assert "accepts nothing" in outcome.unknown[0]  # it may be stored later, and is
        broker.settle(Settlement(gone=held[:2]))
        wait_until(lambda: unacknowledged(server, lab, "orders") == 1, lambda: "The acks were not read")
    finally:
        server.ctl("set_vm_memory_high_watermark", "absolute", "2GiB")
    broker.settle(Settlement(gone=held[2:]))
    wait_until(lambda: broker.fetch("orders", 1), lambda: "What waited in the server did not arrive")


def unacknowledged(server, lab, queue):
    lines = server.ctl("-q", "list_queues", "-p", lab.vhost, "name", "messages_unacknowledged").splitlines()
    return next(int(line.split()[1]) for line in lines if line.split()[0] == queue)


@pytest.mark.long
def test_a_queue_that_is_deleted_under_its_consumer_is_made_anew_and_consumption_goes_on(lab):
    done: list[int] = []

    def handle(number: int) -> None:
        done.append(number)

    app = given.consumer(lab.app(), "orders", handle)
    app.publish("orders", 1)
    with Journal() as journal, Running(app):
        wait_until(lambda: done == [1], lambda: "Nothing was handled")
        connection, channel = raw(lab)
        channel.queue_delete("orders")
        connection.close()
        journal.wait_for("pause")
        # A quorum queue that is just being deleted is an internal error of the server's, in its own words.
        told = ("was deleted, with all that was in it. It is created again", "failed consuming from quorum queue")
        assert any(text in journal.of("pause")[0] for text in told), journal.of("pause")
        app.publish("orders", 2)
        wait_until(lambda: done == [1, 2], lambda: "It did not go on")


@pytest.mark.long
def test_if_the_dlq_is_deleted_consumption_stops_says_so_and_goes_on_once_it_is_back(lab):
    starts: list[int] = []

    def handle(number: int) -> None:
        starts.append(number)
        if number == 1:
            raise Permanent("poison")

    app = given.consumer(lab.app(prefetch=1), "orders", handle)
    app.publish("orders", 0)
    with Journal() as journal, Running(app) as running:
        wait_until(lambda: starts == [0], lambda: "Nothing was handled")
        connection, channel = raw(lab)
        channel.queue_delete("orders.dlq")
        app.publish_many("orders", [1, 2])
        journal.wait_for("pause")
        (told,) = journal.of("pause")
        assert "dlx" in told
        assert starts == [0, 1]
        connection.close()
        lab.broker("orders").close()  # whoever starts anew makes it again
        journal.wait_for("resume")
        wait_until(lambda: starts == [0, 1, 2], lambda: "It did not go on")
        running.run.stop()
        running.wait()
    assert [letter.body for letter in lab.dlq("orders").letters()] == [b"1"]


@pytest.mark.long
def test_a_connection_that_is_cut_in_the_middle_of_a_batch_repeats_and_loses_nothing(lab, server):
    done: list[int] = []
    cut = threading.Event()

    def handle(number: int) -> None:
        done.append(number)
        if number == 30 and not cut.is_set():
            cut.set()
            for connection in server.http("GET", "/api/connections"):
                if connection.get("vhost") == lab.vhost:
                    server.http("DELETE", f"/api/connections/{connection['name'].replace(' ', '%20').replace('>', '%3E')}")

    app = given.consumer(lab.app(prefetch=20), "orders", handle)
    app.publish_many("orders", range(100))
    wait_until(lambda: server.http("GET", "/api/connections"), lambda: "The server lists no connection")
    drained(app)
    assert set(done) == set(range(100))
    assert max(Counter(done).values()) <= 2
    assert lab.dlq("orders").count() == 0


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_message_that_dies_again_since_the_server_forgot_its_end_has_one_letter(lab, server):
    connection, channel = raw(lab)
    channel.queue_declare("orders", durable=True)  # classic: a kill undoes the latest acknowledgements
    connection.close()
    starts: list[int] = []

    def handle(number: int) -> None:
        starts.append(number)
        raise Permanent("poison")

    app = given.consumer(lab.app(), "orders", handle)
    lab.broker("orders")
    time.sleep(OLD_ENOUGH)  # for the DLQ, whose letters must survive
    app.publish_many("orders", range(20))
    drained(app)
    app.close()
    server.kill_hard()
    server.start()
    drained(given.consumer(lab.app(), "orders", handle))
    # The look deletes second copies, so from then on the server counts what people see.
    assert sorted(letter.body for letter in lab.dlq("orders").letters()) == sorted(str(n).encode() for n in range(20))
    assert lab.dlq("orders").count() == 20


@pytest.mark.long
@pytest.mark.timeout(180)
def test_jitter_stays_what_it_was_through_the_queues_that_delay(lab):
    """500 fail at once and come back over 4 seconds: no tenth of a second brings back more than a tenth of them."""
    back: list[float] = []

    def handle(number: int, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ConnectionError("all at once")
        back.append(time.monotonic())

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(4, jitter=True))
    fullest = []
    for _ in range(3):  # a machine that is busy elsewhere can bunch them up, and nothing can spread them
        back.clear()
        app.publish_many("orders", range(500))
        drained(app)
        assert len(back) == 500
        fullest.append(max(Counter(int((moment - back[0]) * 10) for moment in back).values()))
        if fullest[-1] <= 50:
            return
    pytest.fail(f"{fullest} of 500 came back within one tenth of a second")


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.servers("rabbitmq-4")
def test_a_consumer_timeout_of_version_4_voids_what_was_held(tmp_path):
    with private_or_skip("rabbitmq-4") as server:
        server.stop()
        server.start({"consumer_timeout": "2000"})
        with RabbitMQLab(server, tmp_path) as lab:
            rung = threading.Event()
            broker = lab.broker("orders", ring=rung.set)
            broker.publish(given.messages("orders", 2))
            held = broker.fetch("orders", 2)
            wait_until(lambda: not held[0].receipt.holder.alive, lambda: "Nothing was taken back", PATIENCE)
            with pytest.raises(OwnershipLost):
                broker.settle(Settlement(gone=held))
            again = broker.fetch("orders", 2)
            assert [(delivery.body, delivery.counters.vanished) for delivery in again] == [(b"0", 1), (b"1", 1)]
            broker.settle(Settlement(gone=again))
