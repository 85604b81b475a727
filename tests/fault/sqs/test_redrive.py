"""Dead letters that SQS's own redrive moves back to their source start anew, and keep what they had."""

import json

import msgspec
import pytest

from tests.fault.scenes import letter_moved_back
from unpoison.model.message import Counters, Delivery
from unpoison.model.verdict import ErrorClassification
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, drained


def redrive(lab, dlq: str, source: str) -> None:
    """As `aws sqs start-message-move-task` does; returns once everything was moved."""
    letters = lab.queue(dlq)
    arns = {"SourceArn": letters.attributes()["QueueArn"], "DestinationArn": lab.queue(source).attributes()["QueueArn"]}
    letters.client.start_message_move_task(**arns)
    wait_until(lambda: letters.attributes()["ApproximateNumberOfMessages"] == "0", lambda: "The DLQ was not emptied")


def redrive_as_the_console(lab, dlq: str, source: str) -> None:
    """Receive, send with the same body, attributes and message group, delete. ElasticMQ's task moves no FIFO messages."""
    for message in lab.queue(dlq).received():
        attributes = {
            name: {kind: value[kind] for kind in ("DataType", "StringValue", "BinaryValue") if kind in value}
            for name, value in message["MessageAttributes"].items()
        }
        more = {}
        if source.endswith(".fifo"):
            more = {"MessageGroupId": message["Attributes"]["MessageGroupId"], "MessageDeduplicationId": message["MessageId"]}
        lab.queue(source).send(message["Body"], MessageAttributes=attributes, **more)
        lab.queue(dlq).client.delete_message(QueueUrl=lab.queue(dlq).url, ReceiptHandle=message["ReceiptHandle"])


@pytest.mark.parametrize("move", [redrive, redrive_as_the_console], ids=["message move task", "console"])
def test_letters_that_sqs_moves_back_start_anew_and_their_history_is_kept(lab, move):
    letter_moved_back(lab.app(), lambda: move(lab, "orders-dlq", "orders"))
    assert len(list(lab.dlq("orders").letters())) == 1


def test_a_letter_that_was_moved_back_carries_nothing_of_the_letter_any_more_once_it_is_retried(lab):
    given.dead_letters(lab, "orders", [b"poison"])
    redrive(lab, "orders-dlq", "orders")
    broker = lab.broker("orders")
    (delivery,) = broker.fetch("orders", 10)
    assert (delivery.counters.charged, delivery.counters.replays) == (0, 1)
    broker.settle(Settlement(kept=[Kept(delivery, delivery.counters)]))
    broker.close()
    (message,) = lab.queue("orders").received()
    told = json.loads(message["MessageAttributes"]["unpoison"]["StringValue"])
    assert told["counters"]["replays"] == 1
    assert not {"letter", "letter_id", "state"} & told.keys()


def test_a_letter_of_a_message_that_took_a_process_down_runs_alone_when_it_was_moved_back(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    (delivery,) = broker.fetch("orders", 1)
    crashed = msgspec.structs.replace(given.letter_of(delivery), classification=str(ErrorClassification.CRASH))
    broker.settle(Settlement(dead=[Dead(delivery, crashed)]))
    redrive(lab, "orders-dlq", "orders")
    (delivery,) = broker.fetch("orders", 1)
    assert (delivery.counters.alone, delivery.counters.replays) == (True, 1)


@pytest.mark.parametrize("key", ["customer-7", None])
def test_a_letter_of_a_fifo_queue_that_is_moved_back_returns_to_its_message_group(lab, key):
    app = given.consumer(lab.app(), "orders.fifo", _fail, max_attempts=1)
    app.publish("orders.fifo", 1, key=key)
    drained(app)
    app.close()
    (letter,) = lab.dlq("orders.fifo").letters()
    group = key or "unpoison"
    assert letter.original["message_group_id"] == group
    redrive_as_the_console(lab, "orders-dlq.fifo", "orders.fifo")
    broker = lab.broker("orders.fifo")
    came: list[Delivery] = []
    wait_until(lambda: came.extend(broker.fetch("orders.fifo", 1)) or came, lambda: "It did not come")
    assert (came[0].key, came[0].counters.replays) == (key, 1)
    assert came[0].receipt.envelope["Attributes"]["MessageGroupId"] == group


def test_counters_that_another_program_wrote_do_not_count_and_that_is_said_once(lab):
    broker = lab.broker("orders")
    told = {"DataType": "String", "StringValue": '{"counters":{"attempts":99}}'}
    theirs = {"unpoison": told, "x-delivery-attempts": {"DataType": "Number", "StringValue": "99"}}
    for _ in range(2):
        lab.queue("orders").send("hello", MessageAttributes=theirs)
    with Journal() as journal:
        deliveries = [delivery for _ in range(2) for delivery in broker.fetch("orders", 1)]
    assert [each.counters for each in deliveries] == [Counters()] * 2
    assert deliveries[0].headers["x-delivery-attempts"] == "99"
    (line,) = journal.of("foreign-attempts")
    assert "did not write" in line


def _fail(number: int) -> None:
    raise ConnectionError("never")
