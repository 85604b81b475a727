"""What is particular about SQS: ten at a time, waiting at the server, twelve hours, fifteen minutes, rights, other programs."""

import json
from itertools import pairwise

import pytest

from tests.contract.sqs_lab import SHORT_VISIBILITY, SQSLab
from unpoison import App
from unpoison.brokers.sqs import copies, subscription
from unpoison.brokers.sqs.envelope import Envelope
from unpoison.errors import BrokerUnavailable, ConfigError, OwnershipLost
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Running, drained


@pytest.fixture
def watched(tmp_path, elasticmq):
    """One whose requests can be seen and refused."""
    with SQSLab(elasticmq, tmp_path, with_proxy=True) as lab:
        yield lab


def test_messages_travel_ten_at_a_time_both_ways(watched):
    broker = watched.broker("orders")
    broker.publish(given.messages("orders", 100))
    broker.settle(Settlement(gone=broker.fetch("orders", 100)))
    sent, received, deleted = (
        watched.proxy.asked(operation, "orders") for operation in ("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch")
    )
    assert [len(asked["Entries"]) for asked in sent] == [10] * 10
    assert [asked["MaxNumberOfMessages"] for asked in received][:10] == [10] * 10
    assert sum(len(asked["Entries"]) for asked in deleted) == 100
    assert len(deleted) == 10


def test_an_idle_consumer_waits_at_the_server(tmp_path, elasticmq):
    with SQSLab(elasticmq, tmp_path, wait=2, with_proxy=True) as lab:
        handled: list[int] = []
        app = given.consumer(lab.app(), "orders", handled.append, schema=int)
        with Running(app):
            waiting = lambda: [asked for asked in lab.proxy.asked("ReceiveMessage", "orders") if asked["WaitTimeSeconds"]]  # noqa: E731
            wait_until(waiting, lambda: "It never waited at the server")
            app.publish("orders", 1)
            wait_until(lambda: handled, lambda: "It was not woken")
        assert {asked["WaitTimeSeconds"] for asked in waiting()} == {2}


def test_a_message_is_kept_for_as_long_as_it_runs(tmp_path, elasticmq):
    with SQSLab(elasticmq, tmp_path, visibility=6, with_proxy=True) as watched:  # a busy machine may be late with a renewal
        is_kept_while_it_runs(watched)


def is_kept_while_it_runs(watched):
    broker, other = watched.broker("orders"), watched.broker("orders")
    broker.publish(given.messages("orders", 1))
    held = broker.fetch("orders", 1)
    renewed = lambda: len(watched.proxy.asked("ChangeMessageVisibilityBatch", "orders"))  # noqa: E731
    wait_until(lambda: renewed() >= 4, lambda: f"It was renewed {renewed()} times")  # each for longer than until the next
    assert list(other.fetch("orders", 1)) == []
    broker.settle(Settlement(gone=held))
    assert other.depth("orders").empty


def test_a_message_that_was_held_for_twelve_hours_is_lost_and_that_is_said(tmp_path, moto):
    with SQSLab(moto, tmp_path, visibility=SHORT_VISIBILITY) as lab:
        broker = lab.broker("orders")
        broker.publish(given.messages("orders", 1))
        (delivery,) = broker.fetch("orders", 1)
        receipt = delivery.receipt
        receipt.holder.leases._ends[receipt.handle] -= subscription.LONGEST_HELD - subscription.MARGIN
        wait_until(lambda: not receipt.holder.held([receipt]), lambda: "It was renewed once more")
        with pytest.raises(OwnershipLost, match="twelve hours"):
            broker.settle(Settlement(gone=[delivery]))


def test_more_than_twelve_hours_is_never_asked_for(tmp_path, moto):
    """moto, like Amazon's own, refuses to let a message be held for longer in all."""
    with SQSLab(moto, tmp_path, visibility=43_200) as lab:
        broker = lab.broker("orders")
        broker.publish(given.messages("orders", 1))
        held = broker.fetch("orders", 1)
        broker.extend(held)
        broker.settle(Settlement(gone=held))
        assert broker.depth("orders").empty


def test_a_receipt_that_is_no_longer_valid_is_lost_ownership_and_the_rest_is_settled(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 2))
    held = list(broker.fetch("orders", 2))
    queue = lab.queue("orders")
    queue.client.delete_message(QueueUrl=queue.url, ReceiptHandle=held[0].receipt.handle)
    with pytest.raises(OwnershipLost):
        broker.settle(Settlement(gone=held))
    broker.close()
    assert lab.broker("orders").depth("orders").empty


@pytest.mark.parametrize(
    ("delay", "seconds", "wait"), [(0.2, 1, 0.0), (900, 900, 0.0), (900.5, 900, 900.5), (86_400, 900, 86_400)]
)
def test_a_delay_is_never_shortened_and_what_does_not_fit_travels_with_the_message(delay, seconds, wait):
    made = copies.copy("queue", b"x", Envelope(id="1"), delay=delay)
    told = json.loads(made.entry["MessageAttributes"]["unpoison"]["StringValue"])
    assert (made.entry["DelaySeconds"], told.get("wait", 0.0)) == (seconds, wait)


def test_a_message_that_has_to_wait_longer_is_sent_on_until_its_time_has_come(lab):
    broker = lab.broker("orders")
    told = {"unpoison": {"DataType": "String", "StringValue": '{"id":"1","wait":1.5}'}}
    lab.queue("orders").send("late", MessageAttributes=told)  # as it comes back after its first fifteen minutes
    assert list(broker.fetch("orders", 10)) == []
    depth = broker.depth("orders")
    assert (depth.ready, depth.delayed) == (0, 1)
    came: list[str] = []
    wait_until(lambda: came.extend(each.id for each in broker.fetch("orders", 1)) or came, lambda: "It did not come")
    assert came == ["1"]


def test_a_suspect_that_has_to_wait_longer_is_sent_on_too(lab):
    broker = lab.broker("orders")
    told = {
        "unpoison": {
            "DataType": "String",
            "StringValue": '{"id":"1","stamp":"1","wait":1.5,"counters":{"alone":true,"losses":1}}',
        }
    }
    lab.queue("orders-suspects").send("late", MessageAttributes=told)
    assert broker.take_suspect("orders", "here") is None
    taken: list[Counters] = []

    def came() -> bool:
        suspect = broker.take_suspect("orders", "here")
        taken.extend([suspect.counters] if suspect else [])
        return bool(taken)

    wait_until(came, lambda: "It did not come")
    assert (taken[0].alone, taken[0].losses) == (True, 1)


def test_queues_are_made_with_a_last_net_far_above_every_limit(lab):
    lab.broker("orders")
    for name in ("orders", "orders-suspects"):
        policy = json.loads(lab.queue(name).attributes()["RedrivePolicy"])
        assert policy["deadLetterTargetArn"] == lab.queue("orders-dlq").attributes()["QueueArn"]
        assert int(policy["maxReceiveCount"]) == 1000


def test_queues_are_made_to_keep_messages_as_long_as_sqs_can(tmp_path, moto):
    with SQSLab(moto, tmp_path) as lab:  # ElasticMQ tells nothing about that
        lab.broker("orders")
        for name in ("orders", "orders-dlq", "orders-suspects", "orders-replays", "orders-dlq-history"):
            assert lab.queue(name).attributes()["MessageRetentionPeriod"] == "1209600"


def test_what_sqs_itself_gave_up_is_a_letter_and_can_be_sent_again(lab):
    lab.queue("orders-dlq").create(MessageRetentionPeriod="1209600")
    arn = lab.queue("orders-dlq").attributes()["QueueArn"]
    queue = lab.queue("orders")
    queue.create(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    queue.send("poison", MessageAttributes={"trace": {"DataType": "String", "StringValue": "abc"}})
    for _ in range(2):  # the second time it is moved and not delivered
        queue.received(VisibilityTimeout=0)
    dlq = lab.dlq("orders")
    (letter,) = dlq.letters()
    assert (letter.body, dict(letter.message.headers), letter.error_type) == (b"poison", {"trace": "abc"}, "sqs.Redriven")
    assert dlq.get(letter.id).state == "dead"
    dlq.replay_one(letter.id)
    assert [delivery.body for delivery in lab.broker("orders").fetch("orders", 10)] == [b"poison"]


def test_a_dead_poller_makes_nobody_a_suspect(lab):
    lab.broker("orders").publish(given.messages("orders", 1))
    (taken,) = lab.queue("orders").received(VisibilityTimeout=0)
    broker = lab.broker("orders")
    (delivery,) = broker.fetch("orders", 1)
    assert delivery.receipt.envelope["MessageId"] == taken["MessageId"]
    assert delivery.counters == Counters(vanished=1)


def test_a_queue_that_somebody_deletes_is_made_anew(lab):
    handled: list[int] = []
    app = given.consumer(lab.app(), "orders", handled.append, schema=int)
    app.publish("orders", 1)
    drained(app)
    lab.queue("orders").delete()
    app.publish("orders", 2)
    drained(app)
    assert handled == [1, 2]


def test_without_create_the_error_has_the_command(lab):
    app = App(lab.url, create=False)
    with pytest.raises(ConfigError, match=r"aws sqs create-queue --queue-name t\w+-orders"):
        app.publish("orders", 1)
    app.close()


def test_a_missing_right_is_an_error_at_the_start_and_waited_for_later(watched):
    broker = watched.broker("orders")
    watched.proxy.denies = lambda operation, queue: operation == "SendMessageBatch"
    with pytest.raises(BrokerUnavailable, match=r"not authorized.*docs/sqs\.md"):
        given.publish(broker, given.messages("orders", 1))
    watched.proxy.denies = lambda operation, queue: operation == "GetQueueUrl"
    with pytest.raises(ConfigError, match=r"not authorized.*docs/sqs\.md"):
        watched.broker("others")


def test_without_region_or_credentials_the_error_says_where_they_are_looked_for(monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for url in ("sqs://", "sqs://?endpoint=http://127.0.0.1:9&region=eu-west-1", "sqs://?profile=nobody"):
        with pytest.raises(ConfigError, match="AWS_REGION"):
            App(url).publish("orders", 1)


WRONG_URLS = {
    "sqs://queue.example/orders": "names a place",
    "sqs://?region=eu-west-1&colour=red": "'colour'",
    "sqs://?endpoint=localhost:9324": "endpoint='localhost:9324'",
    "sqs://?visibility=0": "from 1 to 43,200, got '0'",
    "sqs://?wait=21": "from 0 to 20, got '21'",
    "sqs://?pollers=many": "got 'many'",
    "sqs://?prefix=a.b": "prefix='a.b'",
}


@pytest.mark.parametrize(("url", "words"), WRONG_URLS.items(), ids=WRONG_URLS)
def test_a_url_that_cannot_work_is_refused_with_the_value(url, words):
    with pytest.raises(ConfigError, match=words):
        App(url)


WRONG_NAMES = {"orders.eu": "'.'", "größe": "'ß'", "a b": "' '", ".fifo": "is empty", "x" * 70: "Shorten it by 4"}


@pytest.mark.parametrize(("source", "words"), WRONG_NAMES.items(), ids=WRONG_NAMES)
def test_a_source_that_cannot_be_a_queue_is_refused(source, words):
    app = App("sqs://key:secret@?region=eu-west-1&endpoint=http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=words):
        app.publish(source, 1)
    app.close()


def test_whoever_holds_more_than_it_needs_gives_it_back_as_it_was(lab):
    broker, other = lab.broker("orders"), lab.broker("orders")
    assert list(broker.fetch("orders", 10)) == []  # from now on it listens
    lab.broker("orders").publish(given.messages("orders", 3))
    wait_until(lambda: broker.known["orders"].work.buffer, lambda: "Nothing came")
    seen: list[Counters] = []

    def all_came() -> bool:
        deliveries = other.fetch("orders", 10)
        seen.extend(delivery.counters for delivery in deliveries)
        other.settle(Settlement(gone=deliveries))
        return len(seen) == 3

    wait_until(all_came, lambda: f"Only {len(seen)} were given back")
    assert seen == [Counters()] * 3


def test_a_retry_that_was_stored_is_not_stored_again_when_deleting_fails(watched):
    broker = watched.broker("orders")
    broker.publish(given.messages("orders", 1))
    (delivery,) = broker.fetch("orders", 1)
    watched.proxy.denies = lambda operation, queue: operation == "DeleteMessageBatch"
    settlement = Settlement(kept=[Kept(delivery, Counters(attempts=1), 60.0)])
    for _ in range(2):
        with pytest.raises(BrokerUnavailable):
            broker.settle(settlement)
    watched.proxy.denies = lambda operation, queue: False
    broker.settle(settlement)
    depth = broker.depth("orders")
    assert (depth.ready, depth.delayed, depth.leased) == (0, 1, 0)


def test_no_original_is_let_go_before_its_copy_is_confirmed(watched):
    broker = watched.broker("orders")
    broker.publish([Outgoing(str(number), "orders", b"{}") for number in range(12)])
    held = broker.fetch("orders", 12)
    watched.proxy.seen.clear()
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1), 60.0) for delivery in held]))
    order = [operation for operation, _ in watched.proxy.seen if operation in ("SendMessageBatch", "DeleteMessageBatch")]
    assert sorted(order, reverse=True) == order
    assert {first for first, second in pairwise(order)} == {"SendMessageBatch", "DeleteMessageBatch"}
