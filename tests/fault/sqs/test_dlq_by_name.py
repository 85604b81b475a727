"""A DLQ of any name: that of a source, and the redrive queue of another program."""

import json

import pytest

from tests.fault.scenes import collected, letters_in_store
from unpoison.brokers import foreign_dlq, url_with_dlq
from unpoison.brokers.sqs.url import address
from unpoison.errors import CapabilityError, ConfigError, PayloadError, Permanent
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import drained


def failing(payload: bytes) -> None:
    raise Permanent("no")


def redriven(lab, *bodies):
    """What SQS itself has moved from the queue of another program into its DLQ. Returns the name of that."""
    dlq, mail = lab.queue("failed"), lab.queue("mail")
    dlq.create()
    mail.create(
        RedrivePolicy=json.dumps({"deadLetterTargetArn": dlq.attributes()["QueueArn"], "maxReceiveCount": 1}),
        VisibilityTimeout="0",
    )
    for body in bodies:
        mail.send(body)

    def are_there() -> bool:
        mail.received()
        return int(dlq.attributes()["ApproximateNumberOfMessages"]) == len(bodies)

    wait_until(are_there, lambda: "They were not redriven")
    return f"{address(lab.url).prefix}failed"


def test_a_source_has_its_letters_in_the_queue_that_is_named(lab):
    app = lab.app()
    app.consumer("orders", dlq="lost-orders", isolation="inline")(failing)
    app.publish("orders", b"1")
    drained(app)
    assert int(lab.queue("lost-orders").attributes()["ApproximateNumberOfMessages"]) == 1
    dlq = app.dlq("orders")
    assert [letter.body for letter in dlq.peek()] == [b"1"]
    assert dlq.replay_one()
    with pytest.raises(ConfigError, match="--source orders"):
        foreign_dlq(app.settings.url, f"{address(lab.url).prefix}lost-orders")


def test_what_sqs_has_redriven_is_shown_and_goes_back(lab):
    name = redriven(lab, "1", "2")
    letters, mail = foreign_dlq(lab.url, name), f"{address(lab.url).prefix}mail"
    shown = {each.body: each for each in letters.browse()}
    assert {(each.source, each.body) for each in shown.values()} == {(mail, b"1"), (mail, b"2")}
    with pytest.raises(CapabilityError, match="move the letters into a store"):
        letters.remove([shown[b"1"].id], keep_as="discarded")
    assert letters.replay([shown[b"1"].id]) == [shown[b"1"].id]
    assert letters.remove([shown[b"2"].id]) == [shown[b"2"].id]
    assert list(letters.browse()) == []
    assert [each["Body"] for each in lab.queue("mail").received()] == ["1"]
    letters.broker.close()


def test_what_sqs_has_redriven_is_collected_and_sent_back_from_the_store(lab):
    name = redriven(lab, "1", "2")
    lab.queue("failed").send("lost")
    assert collected(lab, name).new == 3
    with letters_in_store(lab, name) as letters:
        known = {each.body: each for each in letters.browse()}
        assert {body: each.source for body, each in known.items()} == {
            b"1": f"{address(lab.url).prefix}mail",
            b"2": f"{address(lab.url).prefix}mail",
            b"lost": name,
        }
        assert letters.replay([known[b"1"].id]) == [known[b"1"].id]
        with pytest.raises(PayloadError, match="does not say where it came from"):
            letters.replay([known[b"lost"].id])
    assert [each["Body"] for each in lab.queue("mail").received()] == ["1"]
    assert not lab.queue("failed").received()


def test_a_dlq_that_moves_letters_on_is_refused_unless_that_is_accepted(lab):
    name = redriven(lab, "1")
    grave = lab.queue("grave")
    grave.create()
    policy = {"deadLetterTargetArn": grave.attributes()["QueueArn"], "maxReceiveCount": 5}
    lab.queue("failed").change(RedrivePolicy=json.dumps(policy))
    with pytest.raises(ConfigError, match=r"after 5 receives .*grave.*--accept delivery-limit"):
        foreign_dlq(lab.url, name)
    letters = foreign_dlq(lab.url, name, ["delivery-limit"])
    assert [each.body for each in letters.browse()] == [b"1"]
    letters.broker.close()


def test_names_that_no_queue_can_have_are_refused(lab):
    refused = [("orders.DLT", "has '.' in it"), ("orders.fifo", "must not end with"), ("orders-suspects", "something else")]
    for name, why in refused:
        with pytest.raises(ConfigError, match=why):
            url_with_dlq(lab.url, "orders", name)
    with pytest.raises(ConfigError, match="must end with"):
        url_with_dlq(lab.url, "orders.fifo", "lost")
    with pytest.raises(ConfigError, match="There is no queue 'nowhere'"):
        foreign_dlq(lab.url, "nowhere")
