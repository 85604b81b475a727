"""What was received and did not reach the consumer is not kept from others; what was not renewed is not believed to be held."""

import pytest

from tests.contract.sqs_proxy import refusal
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.port.broker import Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until

SEND, RECEIVE, CHANGE = "SendMessageBatch", "ReceiveMessage", "ChangeMessageVisibilityBatch"


@pytest.fixture
def lab(proxied_lab):
    return proxied_lab


def taken_at_last(broker, count: int) -> list[bytes]:
    """Bodies of all that can be fetched and settled, once they are so many."""
    taken: list[bytes] = []

    def all_came() -> bool:
        deliveries = broker.fetch("orders", 50)
        taken.extend(delivery.body for delivery in deliveries)
        broker.settle(Settlement(gone=deliveries))
        return len(taken) >= count

    wait_until(all_came, lambda: f"Only {len(taken)} of {count} came")
    return taken


def test_a_renewal_that_sqs_refuses_for_one_message_renews_nothing(quick):
    broker = quick.broker("orders")
    broker.publish(given.messages("orders", 1))
    quick.proxy.fails = lambda operation, asked, entry: "InternalError" if operation == CHANGE else None
    (delivery,) = broker.fetch("orders", 1)
    receipt = delivery.receipt
    wait_until(lambda: len(quick.proxy.asked(CHANGE, "orders")) >= 2, lambda: "Nobody renews")
    wait_until(lambda: not receipt.holder.held([receipt]), lambda: "It still believes to hold what SQS has not renewed")
    with pytest.raises(OwnershipLost):
        broker.settle(Settlement(gone=[delivery]))


def test_messages_of_other_requests_are_not_lost_from_sight_when_one_request_fails(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 40))
    lab.proxy.seen.clear()
    lab.proxy.says = lambda operation, asked: (
        (400, refusal("OverLimit")) if operation == RECEIVE and len(lab.proxy.asked(RECEIVE, "-orders")) == 2 else None
    )
    with pytest.raises(BrokerUnavailable, match="OverLimit"):
        broker.fetch("orders", 40)
    lab.proxy.says = lambda operation, asked: None
    assert sorted(map(int, taken_at_last(broker, 40))) == list(range(40))


def test_messages_beside_one_that_cannot_be_sent_on_are_not_lost_from_sight(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 3))
    told = {"DataType": "String", "StringValue": '{"id":"late","wait":600}'}
    lab.queue("orders").send("late", MessageAttributes={"unpoison": told})
    lab.proxy.denies = lambda operation, queue: operation == SEND
    with pytest.raises(BrokerUnavailable, match="not authorized"):
        broker.fetch("orders", 10)
    lab.proxy.denies = lambda operation, queue: False
    assert sorted(taken_at_last(broker, 3)) == [b"0", b"1", b"2"]


def test_a_replay_that_could_not_be_given_back_is_held_no_longer(lab):
    given.dead_letters(lab, "orders", [b"1"])
    broker = lab.broker("orders")
    assert list(broker.fetch("orders", 1)) == []
    broker._keeper.close()  # this test does what it does
    mover = broker.known["orders"].mover
    assert lab.dlq("orders").replay_all().count == 1
    wait_until(lambda: mover.replays.buffer, lambda: "The replay does not come")
    lab.proxy.denies = lambda operation, queue: operation == CHANGE
    with pytest.raises(BrokerUnavailable, match="not authorized"):
        mover.give_back()
    assert len(mover.replays.leases) == 0


@pytest.mark.long
def test_a_letter_that_could_not_be_put_back_at_once_is_seen_by_the_next_one_who_looks(lab):
    given.dead_letters(lab, "orders", [b"0", b"1"])
    failed: list[dict] = []

    def once(operation: str, asked: dict, entry: dict) -> str | None:
        if operation != CHANGE or not asked["QueueUrl"].endswith("-dlq") or failed:
            return None
        failed.append(entry)
        return "InternalError"

    lab.proxy.fails = once
    assert len(list(lab.dlq("orders").letters())) == 2
    assert failed
    assert len(list(lab.dlq("orders").letters())) == 2


@pytest.mark.long
def test_letters_that_were_taken_for_a_look_that_fails_are_seen_by_the_next_one(lab):
    given.dead_letters(lab, "orders", [b"%d" % number for number in range(30)])
    lab.proxy.seen.clear()
    lab.proxy.says = lambda operation, asked: (
        (400, refusal("OverLimit")) if operation == RECEIVE and len(lab.proxy.asked(RECEIVE, "-dlq")) == 2 else None
    )
    with pytest.raises(BrokerUnavailable, match="OverLimit"):
        list(lab.dlq("orders").letters())
    lab.proxy.says = lambda operation, asked: None
    assert len(list(lab.dlq("orders").letters())) == 30
