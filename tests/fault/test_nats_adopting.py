"""What if streams and consumers were there before, or another program writes the messages? They are used as they are."""

import pytest

from tests.contract.nats_lab import NATSLab
from unpoison.backoff import Backoff
from unpoison.brokers.nats import wire
from unpoison.brokers.nats.link import Link, Refused
from unpoison.brokers.nats.url import address
from unpoison.errors import ConfigError
from unpoison.message import Delivery
from unpoison.ports import Depth, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import drained


@pytest.fixture
def lab(tmp_path, nats):
    with NATSLab(nats, tmp_path) as lab:
        yield lab


@pytest.fixture
def raw(lab):
    link = Link(address(lab.url))
    yield link
    link.close()


def make(raw, name="shop", subjects=("orders",), **settings):
    raw.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": list(subjects), "retention": "limits", **settings})


def consume(raw, stream, name, **settings):
    config = {"durable_name": name, "ack_policy": "explicit", **settings}
    raw.ask(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})


def publish(raw, subject, body, block=b""):
    reply, future = raw.expect()
    raw.send(wire.publication(subject.encode(), reply, block, body))
    assert b"error" not in raw.wait(future, "publishing")[1]


def test_what_was_there_before_is_used_shown_and_never_changed(lab, raw):
    make(raw, storage="memory", max_age=3600 * 10**9, max_msgs=5)
    consume(raw, "shop", "unpoison", filter_subject="orders", max_deliver=3, max_ack_pending=10, ack_wait=2 * 10**9)
    before = [raw.ask("STREAM.INFO.shop")["config"], raw.ask("CONSUMER.INFO.shop.unpoison")["config"]]
    broker = lab.connect()
    findings = broker.open(["orders"])
    shown = {finding.name: finding.loses for finding in findings}
    assert shown == {
        "stream-in-memory": True,
        "stream-drops-messages": False,
        "delivery-limit": True,
        "few-pending": False,
        "short-ack-wait": False,
    }
    assert all(finding.fix for finding in findings)
    broker.publish(given.messages("orders", 1))
    assert [delivery.body for delivery in broker.fetch("orders", 10)] == [b"0"]
    broker.close()
    assert [raw.ask("STREAM.INFO.shop")["config"], raw.ask("CONSUMER.INFO.shop.unpoison")["config"]] == before


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"deliver_subject": "elsewhere"}, "pushes to 'elsewhere'"),
        ({"ack_policy": "all"}, "ack_policy 'all'"),
        ({"headers_only": True}, "headers only"),
    ],
)
def test_a_consumer_that_would_lose_messages_is_refused_with_the_way_out(lab, raw, settings, told):
    make(raw)
    consume(raw, "shop", "unpoison", filter_subject="orders", **settings)
    with pytest.raises(ConfigError, match=rf"{told}.*another one with \?group=NAME"):
        lab.connect().open(["orders"])


def test_of_a_stream_with_many_subjects_only_the_source_is_taken_and_acknowledged(lab, raw):
    """Acknowledging what belongs to others would lose it, and cancel schedules."""
    make(raw, subjects=["shop.>"], retention="workqueue", allow_msg_schedules=True)
    publish(
        raw,
        "shop.later.1",
        b"1",
        b"NATS/1.0\r\nNats-Schedule: @at 2100-01-01T00:00:00Z\r\nNats-Schedule-Target: shop.orders\r\n\r\n",
    )
    publish(raw, "shop.invoices", b"invoice")
    publish(raw, "shop.orders", b"7")
    seen: list[int] = []
    drained(given.consumer(lab.app(), "shop.orders", seen.append, schema=int))
    assert seen == [7]
    assert raw.ask("CONSUMER.INFO.shop.unpoison_shop_orders")["config"]["filter_subject"] == "shop.orders"
    assert raw.ask("STREAM.INFO.shop", {"subjects_filter": ">"})["state"]["subjects"] == {"shop.later.1": 1, "shop.invoices": 1}


def test_a_delayed_message_arrives_although_no_consumer_runs(lab, raw):
    app = lab.app()
    app.publish("orders", 1, delay=0.3)
    app.close()
    wait_until(
        lambda: raw.ask("CONSUMER.INFO.orders_unpoison_RETRIES.again")["num_pending"] == 1, lambda: "The schedule did not fire"
    )


def test_two_groups_each_handle_each_message_once_while_one_retries_dead_letters_and_replays(lab, raw):
    make(raw)
    billing: list[int] = []
    shipping: list[tuple[int, int]] = []
    is_mended = False

    def ship(number: int, delivery: Delivery) -> None:
        shipping.append((number, delivery.attempt))
        if number == 1 and delivery.attempt == 1 and not is_mended:
            raise ConnectionError("not now")
        if number == 2 and not is_mended:
            raise ValueError("poison")

    first = given.consumer(lab.app(), "orders", ship, backoff=Backoff.immediate())
    url, lab.url = lab.url, f"{lab.url}&group=billing"
    second = given.consumer(lab.app(), "orders", billing.append, schema=int)
    lab.url = url
    second.runnable()
    lab.broker("orders").close()
    second.publish_many("orders", range(4))
    drained(first)
    drained(second)
    is_mended = True
    assert lab.dlq("orders").replay_all().count == 1
    drained(first)
    drained(second)
    assert billing == [0, 1, 2, 3]
    assert sorted(shipping) == [(0, 1), (1, 1), (1, 2), (2, 1), (2, 1), (3, 1)]


def test_a_second_group_on_a_work_queue_is_told_that_it_would_get_nothing(lab):
    lab.broker("orders")
    lab.url += "&group=billing"
    with pytest.raises(ConfigError, match=r"work queue.*retention limits"):
        lab.connect().open(["orders"])


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"NATS/1.0\r\nno colon here\r\n\r\n",
        b"NATS/1.0\r\nname: \xff\xfe\r\nname: twice\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: theirs\r\nx-unpoison-unseen: nonsense\r\nx-unpoison-history: {\r\n\r\n",
    ],
    ids=["none", "no colon", "no text, twice", "ours and theirs"],
)
def test_what_another_program_wrote_is_retried_and_given_up_with_its_headers_as_they_were(lab, raw, block):
    seen: list[Delivery] = []

    def handle(payload: bytes, delivery: Delivery) -> None:
        seen.append(delivery)
        if payload == b"poison":
            raise ConnectionError("never")

    app = given.consumer(lab.app(), "orders", handle, max_attempts=3, backoff=Backoff.immediate())
    app.publish("orders", b"first")
    publish(raw, "orders", b"poison", block)
    app.publish("orders", b"last")
    drained(app)
    starts = [(delivery.attempt, dict(delivery.headers), delivery.id) for delivery in seen if delivery.body == b"poison"]
    assert [attempt for attempt, _, _ in starts] == [1, 2, 3]
    assert len({str(rest) for _, *rest in starts}) == 1, "a retry looks different from the first start"
    (letter,) = lab.dlq("orders").peek()
    assert (letter.body, dict(letter.message.headers)) == (b"poison", starts[0][1])
    assert {delivery.body for delivery in seen} == {b"first", b"poison", b"last"}


def test_a_message_that_came_again_with_the_same_id_of_its_sender_is_not_taken_for_a_copy(lab, raw):
    """The duplicates that NATS looks for are those of publishers. A retry is none."""
    lab.broker("orders")
    publish(raw, "orders", b"1", b"NATS/1.0\r\nNats-Msg-Id: same\r\n\r\n")
    attempts: list[int] = []

    def handle(payload: bytes, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt < 3:
            raise ConnectionError("not now")

    drained(given.consumer(lab.app(), "orders", handle, backoff=Backoff.immediate()))
    assert attempts == [1, 2, 3]


def test_without_the_right_to_create_the_error_has_the_commands(lab, raw):
    with pytest.raises(ConfigError, match="nats stream add --config"):
        lab.connect().open(["orders"], create=False)
    with pytest.raises(Refused):
        raw.ask("STREAM.INFO.orders")


@pytest.mark.parametrize("source", ["", "orders.", "orders.*", "orders.>", "a b", "$JS.x", "unpoison.x", "x" * 200, "a/b"])
def test_a_name_that_cannot_be_a_source_is_refused(lab, source):
    with pytest.raises(ConfigError, match="Source"):
        lab.connect().open([source])


def test_what_was_settled_leaves_nothing_behind(lab, raw):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 3))
    broker.settle(Settlement(gone=broker.fetch("orders", 10)))
    assert broker.depth("orders") == Depth()
    assert raw.ask("STREAM.INFO.orders")["state"]["messages"] == 0
