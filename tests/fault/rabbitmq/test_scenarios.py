"""The three things that can happen to a message on RabbitMQ, and what its queues then hold."""

import os
import signal
import subprocess
import threading

import msgspec
import pika
import pytest

from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.errors import OwnershipLost, Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.contract.pausing import taken
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import Child, Effects, Gate
from unpoison.testing.running import drained


def waiting(raw, queue):
    return raw.queue_declare(queue, passive=True).method.message_count


def test_scenario_a_handled_acknowledged_gone(lab, raw):
    done = []
    app = given.consumer(lab.app(), "orders", done.append, schema=dict)
    app.publish("orders", {"id": 1})
    drained(app)
    assert done == [{"id": 1}]
    assert [waiting(raw, queue) for queue in ("orders", "orders.dlq", "orders.suspects")] == [0, 0, 0]


def test_scenario_b_each_failure_stores_a_copy_with_one_more_attempt_before_the_original_goes(lab, raw):
    broker = lab.broker("orders")
    broker.publish([Outgoing("order-1", "orders", b"{}", headers={"trace": "1"})])
    for attempts in (1, 2):
        (delivery,) = taken(broker, 1)  # on a busy machine the server may take a moment
        kept = Kept(delivery, given_counters(delivery, attempts))
        broker.settle(Settlement(kept=[kept]))
    broker.close()
    _, properties, body = raw.basic_get("orders")
    assert (body, properties.message_id, properties.delivery_mode) == (b"{}", "order-1", 2)
    assert (properties.headers["x-delivery-attempts"], properties.headers["trace"]) == (2, "1")


def test_scenario_b_over_the_limit_it_goes_through_the_exchange_dlx_with_the_full_record(lab, raw):
    def fail(payload: object) -> None:
        raise ConnectionError("the printer is on fire")

    app = given.consumer(lab.app(), "orders", fail, max_attempts=2, backoff=Backoff.immediate())
    app.publish("orders", b"\xff\x00 raw")
    app.publish("orders", {"id": 1})
    raw.queue_declare("archive")
    raw.queue_bind("archive", "dlx", "orders")
    drained(app)
    found = {body: properties.headers for _, properties, body in (raw.basic_get("orders.dlq") for _ in range(2))}
    assert set(found) == {b"\xff\x00 raw", b'{"id":1}'}
    assert found[b'{"id":1}']["x-delivery-attempts"] == 2
    assert found[b'{"id":1}']["x-unpoison-error"] == "ConnectionError: the printer is on fire"
    assert waiting(raw, "archive") == 2, "others can bind to dlx"


def test_scenario_c_a_message_whose_consumer_died_is_counted_before_it_runs_again(lab):
    effects, holding = Effects(lab.folder), Gate("holding")

    def hold(payload: object) -> None:
        holding.open()
        threading.Event().wait()

    def handle(payload: object, delivery: Delivery) -> None:
        effects.add(f"vanished {delivery.counters.vanished}, returned {delivery.returned}")

    lab.app().publish("orders", 1)
    with Child(lambda: given.consumer(lab.app(), "orders", hold).run()) as child:
        holding.wait()
        child.kill()
    drained(given.consumer(lab.app(), "orders", handle))
    assert effects.lines() == ["vanished 1, returned True"]


def test_a_message_larger_than_one_write_is_stored_and_comes_back_bit_for_bit(lab):
    broker, body = lab.broker("orders"), b"\x00\xff" * 3_000_000
    broker.publish([Outgoing("small", "orders", b"1"), Outgoing("large", "orders", body)])
    small, large = broker.fetch("orders", 2)
    assert (small.body, large.body == body) == (b"1", True)
    broker.settle(Settlement(gone=[small, large]))


def test_if_the_thread_of_a_connection_ends_everybody_who_waits_on_it_is_told(lab):
    broker = lab.broker("orders")
    broker.publish([Outgoing("order-1", "orders", b"1")])
    (held,) = broker.fetch("orders", 1)

    def fall_over() -> None:
        raise RuntimeError("a bug in the client")

    held.receipt.holder.connection.post(fall_over)
    wait_until(lambda: not held.receipt.holder.alive, lambda: "What was held still looks held")
    with pytest.raises(OwnershipLost):
        broker.settle(Settlement(gone=[held]))
    assert [again.body for again in broker.fetch("orders", 1)] == [b"1"]


def test_a_letter_that_rabbitmq_wrote_after_a_replay_is_a_new_one(lab, raw):
    """The replayed message tells of its letter, for the history; that must not make a later letter look dealt with."""

    def fail(payload: object) -> None:
        raise Permanent("no")

    app = given.consumer(lab.app(), "orders", fail)
    app.publish("orders", 1)
    drained(app)
    dlq = lab.dlq("orders")
    (letter,) = dlq.peek()
    assert dlq.replay_all().replayed == (letter.id,)
    method, properties, _ = raw.basic_get("orders")
    assert "BCC" not in properties.headers
    raw.basic_reject(method.delivery_tag, requeue=False)
    wait_until(lambda: waiting(raw, "orders.dlq") == 1, lambda: "RabbitMQ did not dead-letter it")
    states = {each.id: (each.state, each.error_type) for each in dlq.letters(state=None)}
    assert states.pop(letter.id) == ("replayed", "unpoison.errors.Permanent")
    assert list(states.values()) == [("dead", "rabbitmq.rejected")]


def test_while_a_worker_lives_the_server_gives_its_message_to_nobody_else(lab):
    """The consumer is killed, and a process that could still run the message holds what `inherited_fds` named."""
    lab.app().publish("orders", 1)
    told = lab.folder / "worker"

    def hold_and_die() -> None:
        broker = lab.broker("orders")
        assert len(broker.fetch("orders", 1)) == 1
        inherited_fds = broker.inherited_fds()
        told.write_text(str(subprocess.Popen(["sleep", "60"], pass_fds=inherited_fds).pid))
        os.kill(os.getpid(), signal.SIGKILL)

    rung = threading.Event()
    other = lab.broker("orders", ring=rung.set)
    with Child(hold_and_die) as child:
        child.wait()
    rung.clear()
    assert other.fetch("orders", 1) == []
    assert not rung.wait(1), "it came back while somebody might run it"
    os.kill(int(told.read_text()), signal.SIGKILL)
    wait_until(lambda: other.fetch("orders", 1), lambda: "It did not come back")


def test_each_ttl_in_the_url_is_for_its_own_queue(lab, rabbitmq):
    broker = RabbitMQBroker(f"{lab.url}?message_ttl=0.5&dlq_ttl=1209600")
    broker.open(["orders"])
    broker.close()
    names = ("orders", "orders.dlq", "orders.suspects", "orders.dlq.history")
    found = {name: rabbitmq.http("GET", f"/api/queues/{lab.vhost}/{name}")["arguments"].get("x-message-ttl") for name in names}
    assert found == {"orders": 500, "orders.dlq": 1_209_600_000, "orders.suspects": None, "orders.dlq.history": None}


def test_what_nobody_starts_within_message_ttl_arrives_in_the_dlq_as_expired(lab, raw):
    lab.url += "?message_ttl=0.2"
    lab.app().publish_many("orders", ["same", "same"])
    wait_until(lambda: waiting(raw, "orders.dlq") == 2, lambda: "they did not expire")
    letters = lab.dlq("orders").peek()
    assert len({letter.id for letter in letters}) == 2, "equal bodies are two letters"
    for letter in letters:
        assert letter.reason.startswith("expired: ")
        assert letter.rule == "expired: RabbitMQ dead-lettered it from queue 'orders'"
        assert (letter.error_type, letter.body, letter.attempts, letter.state) == ("rabbitmq.expired", b"same", 0, "dead")
        assert letter.original == {
            "source": "orders",
            "exchange": "",
            "routing_key": "orders",
            "queue": "orders",
            "reason": "expired",
            "count": "1",
        }
    lab.dlq("orders").discard(letters[0].id)
    assert [letter.id for letter in lab.dlq("orders").peek()] == [letters[1].id], "with one the other was let go"


def test_of_two_letters_that_nothing_tells_apart_both_are_replayed(lab, raw):
    """Written by another program, without an id: the one that is left must not be taken for a copy of the other."""
    lab.broker("orders").close()
    for _ in range(2):
        raw.basic_publish("", "orders.dlq", b"same")
    wait_until(lambda: waiting(raw, "orders.dlq") == 2, lambda: "they are not there")
    for _ in range(2):
        assert lab.dlq("orders").replay_one().count == 1
    assert lab.dlq("orders").count() == 0
    wait_until(lambda: waiting(raw, "orders") == 2, lambda: "one of them is lost")


def test_an_expired_letter_that_is_replayed_and_expires_again_is_a_new_letter(lab, raw):
    lab.url += "?message_ttl=0.2"
    lab.app().publish("orders", 1)
    wait_until(lambda: waiting(raw, "orders.dlq") == 1, lambda: "it did not expire")
    dlq = lab.dlq("orders")
    (first,) = dlq.peek()
    assert dlq.replay_all().replayed == (first.id,)
    wait_until(lambda: waiting(raw, "orders.dlq") == 1, lambda: "it did not expire again")
    (second,) = dlq.peek()
    assert (second.id != first.id, second.replays, second.reason) == (True, 1, first.reason)


@pytest.mark.parametrize("ends_after", [1, 3])
def test_a_letter_names_the_exchange_and_the_routing_key_that_its_message_was_published_with(lab, raw, ends_after):
    def handle(payload: object, delivery: Delivery) -> None:
        raise Permanent("no") if delivery.attempt == ends_after else ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(0.1))
    lab.broker("orders")
    raw.exchange_declare("shop", "topic", durable=True)
    raw.queue_bind("orders", "shop", "order.*")
    raw.basic_publish("shop", "order.paid", b"1", pika.BasicProperties(delivery_mode=2))
    wait_until(lambda: waiting(raw, "orders") == 1, lambda: "it did not arrive")
    drained(app)
    dlq = lab.dlq("orders")
    (letter,) = dlq.peek()
    assert letter.original == {"source": "orders", "exchange": "shop", "routing_key": "order.paid"}
    dlq.replay_all()
    drained(app)
    (again,) = dlq.peek()
    assert again.original == letter.original, "after a replay too"


def test_a_message_that_was_published_with_a_delay_names_its_queue_and_not_the_delay(lab):
    def handle(payload: object) -> None:
        raise Permanent("no")

    app = given.consumer(lab.app(), "orders", handle)
    app.publish("orders", 1, delay=0.1)
    drained(app)
    (letter,) = lab.dlq("orders").peek()
    assert letter.original == {"source": "orders", "exchange": "", "routing_key": "orders"}


def given_counters(delivery: Delivery, attempts: int):
    return msgspec.structs.replace(delivery.counters, attempts=attempts)


def test_a_message_that_another_program_puts_into_the_lock_of_operators_ends_no_operator(lab, raw):
    given.dead_letters(lab, "orders", [b"1", b"2"])
    dlq = lab.dlq("orders")
    assert dlq.count() == 2
    raw.confirm_delivery()
    raw.basic_publish("", "orders.dlq.lock", b"lost its way")
    assert dlq.replay_all().count == 2
