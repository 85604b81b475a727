"""What if streams and consumers were there before, or another program writes the messages? They are used as they are."""

import base64
import json

import pytest

from tests.fault.scenes import letter_moved_back
from unpoison import App
from unpoison.app_internals import runnable
from unpoison.brokers import findings_for
from unpoison.brokers.nats import wire
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.url import address
from unpoison.errors import ConfigError
from unpoison.flow import ending
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.port.broker import Depth, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, Running, drained


@pytest.fixture
def raw(lab):
    connection = Connection(address(lab.url))
    yield connection
    connection.close()


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
    runnable(second)
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
        b"NATS/1.0\r\nNats-Msg-Id: theirs\r\nx-unpoison-vanished: nonsense\r\nx-unpoison-history: {\r\n\r\n",
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


def test_doctor_looks_at_a_stream_that_unpoison_has_never_used_and_changes_nothing(lab, raw):
    make(raw, storage="memory")
    consume(raw, "shop", "unpoison", filter_subject="orders", max_deliver=3)
    publish(raw, "orders", b"1")
    before = [raw.ask("STREAM.LIST", {}), raw.ask("CONSUMER.INFO.shop.unpoison")]
    found = {finding.name: finding for finding in findings_for(lab.url, ["orders"])}
    wanted = {"stream-in-memory": True, "streams-missing": False, "delivery-limit": True}
    assert {name: found[name].loses for name in wanted} == wanted
    assert "orders_unpoison_RETRIES, orders_DLQ" in found["streams-missing"].problem
    assert "source-missing" not in found
    after = [raw.ask("STREAM.LIST", {}), raw.ask("CONSUMER.INFO.shop.unpoison")]
    assert _lasting(after) == _lasting(before)


def _lasting(answers):
    """Without when it was answered."""
    streams = [{**stream, "ts": ""} for stream in answers[0]["streams"]]
    return streams, {**answers[1], "ts": ""}


def test_doctor_finds_a_consumer_of_another_program_that_keeps_us_from_a_work_queue(lab, raw):
    make(raw, retention="workqueue")
    consume(raw, "shop", "billing", filter_subject="orders")
    found = {finding.name: finding for finding in findings_for(lab.url, ["orders"])}
    assert found["work-queue-taken"].stops
    raw.ask("CONSUMER.DELETE.shop.billing")
    assert "work-queue-taken" not in {finding.name for finding in findings_for(lab.url, ["orders"])}


@pytest.mark.parametrize("is_adopted", [True, False])
def test_with_create_false_all_that_is_missing_is_one_error_and_nothing_is_made(lab, raw, is_adopted):
    if is_adopted:
        make(raw)
    with pytest.raises(ConfigError, match=r"lacks \d streams and consumers, and create=False") as caught:
        lab.connect().open(["orders"], create=False)
    told = str(caught.value)
    assert ("stream orders," in told) is not is_adopted
    streams, consumers = ("orders_unpoison_RETRIES", "orders_DLQ"), ("again", "suspects", "unpoison")
    assert all(f"stream {name}" in told for name in streams)
    assert all(f"consumer {name}" in told for name in consumers)
    assert told.count("--config=<(echo") == 6 + (not is_adopted)
    assert raw.ask("STREAM.NAMES", {})["total"] == is_adopted
    for line in told.splitlines()[1:]:
        command, _, config = line.removesuffix("')").partition(" --config=<(echo '")
        _, kind, _, *stream = command.split()
        if kind == "stream":
            raw.ask(f"STREAM.CREATE.{json.loads(config)['name']}", json.loads(config))
        else:
            consume(raw, stream[0], json.loads(config)["durable_name"], **json.loads(config))
    broker = lab.connect()
    assert list(broker.open(["orders"], create=False)) == []
    broker.close()


def test_with_create_false_one_error_names_what_all_sources_of_an_app_lack(lab):
    app, sources = App(lab.url, create=False), ("orders", "invoices", "parcels")
    for source in sources:
        given.consumer(app, source, print, schema=int)
    with pytest.raises(ConfigError) as caught:
        drained(app)
    assert all(f"Source {source!r} lacks 7 streams and consumers" in str(caught.value) for source in sources)
    app.close()


def test_with_create_false_what_differs_from_ours_is_said_at_the_start(lab, raw):
    lab.broker("orders").close()
    config = raw.ask("STREAM.INFO.orders")["config"]
    raw.ask("STREAM.UPDATE.orders", config | {"max_age": 3600 * 10**9})
    broker = lab.connect()
    assert [finding.name for finding in broker.open(["orders"], create=False)] == ["stream-drops-messages"]
    broker.close()


def test_an_adopted_stream_that_is_deleted_is_not_made_anew_but_waited_for(lab, raw, monkeypatch):
    monkeypatch.setattr(ending, "RETRY_BROKER", (0.1,))
    make(raw, subjects=["orders", "invoices"])
    handled: list[int] = []
    app = given.consumer(lab.app(), "orders", handled.append, schema=int)
    with Journal() as journal, Running(app):
        publish(raw, "orders", b"1")
        wait_until(lambda: handled == [1], lambda: f"{handled} were handled")
        raw.ask("STREAM.DELETE.shop")
        journal.wait_for("pause")
        assert raw.ask("STREAM.NAMES", {"subject": "orders"})["streams"] is None
        make(raw, subjects=["orders", "invoices"])
        publish(raw, "orders", b"2")
        wait_until(lambda: handled == [1, 2], lambda: f"{handled} were handled")
    assert any("makes none in its place" in line for line in journal.of("pause"))


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


def test_a_letter_that_another_program_publishes_again_starts_anew_and_its_history_is_kept(lab, raw):
    def publish_again():
        letter = raw.ask("STREAM.MSG.GET.orders_DLQ", {"last_by_subj": "unpoison.dead.orders"})["message"]
        publish(raw, "orders", base64.b64decode(letter["data"]), base64.b64decode(letter["hdrs"]))

    letter_moved_back(lab.app(), publish_again)


def test_attempts_that_another_program_counts_do_not_count_and_its_handler_sees_them(lab, raw):
    seen: list[tuple[int, str]] = []

    def handle(number: int, delivery: Delivery) -> None:
        seen.append((delivery.attempt, delivery.headers["x-delivery-attempts"]))
        assert dict(delivery.native.headers)["x-delivery-attempts"] == b"99"
        raise ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    app.publish("orders", 0)
    for number in (b"1", b"2"):
        publish(raw, "orders", number, b"NATS/1.0\r\nx-delivery-attempts: 99\r\n\r\n")
    raw.ask("STREAM.MSG.DELETE.orders", {"seq": 1})
    with Journal() as journal:
        drained(app)
    assert sorted(seen) == [(1, "99"), (1, "99"), (2, "99"), (2, "99")]
    assert {letter.message.headers["x-delivery-attempts"] for letter in lab.dlq("orders").letters()} == {"99"}
    assert len(journal.of("foreign-attempts")) == 1
