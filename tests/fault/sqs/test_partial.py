"""SQS says yes to a batch and no to one of its messages: that one is not taken for done, and the others are not done twice."""

import threading
from collections.abc import Callable

import pytest

from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until

SEND, DELETE = "SendMessageBatch", "DeleteMessageBatch"


@pytest.fixture
def lab(proxied_lab):
    return proxied_lab


def failing(operation: str, bodies: tuple[str, ...] = (), code: str = "InternalError") -> Callable[[str, dict, dict], str | None]:
    """For the proxy: entries of this operation, with one of these bodies if they have any, fail."""
    return lambda name, asked, entry: code if name == operation and entry.get("MessageBody", "") in (*bodies, "") else None


def well(operation: str, asked: dict, entry: dict) -> str | None:
    return None


def bodies(lab, queue: str) -> list[str]:
    """What lies in a queue or waits there for its time."""
    return sorted(entry["MessageBody"] for asked in lab.proxy.asked(SEND, queue) for entry in asked["Entries"])


def test_publish_says_which_was_not_stored_and_why(lab):
    broker = lab.broker("orders")
    lab.proxy.fails = failing(SEND, ("1",))
    outcome = broker.publish(given.messages("orders", 3))
    # An error of SQS's own: it does not say that the message is not stored.
    assert (dict(outcome.unknown), dict(outcome.refused)) == ({1: "SQS did not store it: no (InternalError)."}, {})
    assert sorted(delivery.body for delivery in broker.fetch("orders", 10)) == [b"0", b"2"]


def test_a_retry_that_was_refused_is_stored_at_the_next_try_and_the_others_are_not_stored_again(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 3))
    settlement = Settlement(kept=[Kept(each, Counters(attempts=1), 600.0) for each in broker.fetch("orders", 3)])
    lab.proxy.seen.clear()
    lab.proxy.fails = failing(SEND, ("1",))
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="InternalError"):
            broker.settle(settlement)
    lab.proxy.fails = well
    broker.settle(settlement)
    assert bodies(lab, "orders") == ["0", "1", "1", "1", "1", "2"]
    depth = broker.depth("orders")
    assert (depth.ready, depth.delayed, depth.leased) == (0, 3, 0)


def test_while_the_dlq_cannot_be_written_no_retry_is_stored_twice(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 2))
    poison, other = broker.fetch("orders", 2)
    settlement = Settlement(kept=[Kept(other, Counters(attempts=1), 600.0)], dead=[Dead(poison, given.letter_of(poison))])
    lab.proxy.denies = lambda operation, queue: operation == SEND and queue.endswith("-dlq")
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="not authorized"):
            broker.settle(settlement)
    lab.proxy.denies = lambda operation, queue: False
    broker.settle(settlement)
    depth = broker.depth("orders")
    assert (depth.ready, depth.delayed, depth.leased, depth.dead) == (0, 1, 0, 1)


def test_what_was_not_deleted_is_deleted_at_the_next_try(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 3))
    settlement = Settlement(gone=broker.fetch("orders", 3))
    lab.proxy.fails = lambda operation, asked, entry: "InternalError" if operation == DELETE and entry["Id"] == "1" else None
    with pytest.raises(BrokerUnavailable, match="did not delete 1 of 3 messages"):
        broker.settle(settlement)
    lab.proxy.fails = well
    broker.settle(settlement)
    assert [len(asked["Entries"]) for asked in lab.proxy.asked(DELETE, "orders")] == [3, 1]
    assert broker.depth("orders").empty


def test_messages_that_are_moved_on_are_moved_once_though_one_of_them_is_refused(lab):
    """Their time is not over after the longest delay of SQS: they are sent on to wait again."""
    broker, queue = lab.broker("orders"), lab.queue("orders")
    for number in range(3):
        told = {"DataType": "String", "StringValue": f'{{"id":"{number}","wait":600}}'}
        queue.send(str(number), MessageAttributes={"unpoison": told})
    lab.proxy.seen.clear()
    lab.proxy.fails = failing(SEND, ("1",))
    with pytest.raises(BrokerUnavailable, match="refuses 1 of 3 messages that are to be moved"):
        broker.fetch("orders", 3)
    assert bodies(lab, "orders") == ["0", "1", "2"]
    depth = broker.depth("orders")
    assert (depth.delayed, depth.leased) == (2, 1)


@pytest.mark.long
def test_a_letter_that_was_sent_again_reaches_its_source_once_though_its_history_is_refused_for_a_while(quick):
    given.dead_letters(quick, "orders", [b"0", b"1"])
    assert quick.dlq("orders").replay_all().count == 2
    quick.proxy.seen.clear()
    quick.proxy.fails = lambda operation, asked, entry: (
        "InternalError" if operation == SEND and asked["QueueUrl"].endswith("-history") and entry["MessageBody"] == "1" else None
    )
    broker = quick.broker("orders")
    with pytest.raises(BrokerUnavailable, match="refuses 1 of 2 messages that are to be moved"):
        broker.fetch("orders", 10)
    assert bodies(quick, "-orders") == ["0"]
    quick.proxy.fails = well
    taken: list[bytes] = []

    def both_came() -> bool:
        deliveries = broker.fetch("orders", 10)
        taken.extend(delivery.body for delivery in deliveries)
        broker.settle(Settlement(gone=deliveries))
        return len(taken) == 2

    wait_until(both_came, lambda: f"Only {taken} came")
    assert bodies(quick, "-orders") == ["0", "1"]


def test_a_consumer_goes_on_by_itself_once_sqs_takes_everything_again(lab):
    refused, may_go_on = threading.Event(), threading.Event()
    starts: list[int] = []
    lab.proxy.fails = lambda operation, asked, entry: _once_told(operation, refused, may_go_on)
    app = given.consumer(lab.app(), "orders", starts.append, schema=int)
    app.publish_many("orders", range(20))
    given_back = threading.Thread(target=lambda: refused.wait(60) and may_go_on.set())
    given_back.start()
    tally = given.consumed(app, "orders", lab.broker("orders"))
    given_back.join()
    assert (tally.done, sorted(starts)) == (20, list(range(20)))


def _once_told(operation: str, refused: threading.Event, may_go_on: threading.Event) -> str | None:
    if operation != DELETE or may_go_on.is_set():
        return None
    refused.set()
    return "InternalError"
