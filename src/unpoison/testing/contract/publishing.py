"""Of each message that was published it is told whether it is stored, refused or unknown."""

import pytest

from unpoison.errors import PublishFailed, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import Broker, Capability, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.lab import Lab, Trait, trait

UNANSWERED = b"unanswered"


def test_a_publish_says_that_all_is_stored_and_which_source_it_has_made(lab: Lab) -> None:
    broker = lab.broker()
    first = broker.publish(given.messages("orders", 3))
    assert (dict(first.refused), dict(first.unknown), set(first.created)) == ({}, {}, {"orders"})
    assert not broker.publish(given.messages("orders", 1, first=3)).created
    assert not lab.broker().publish(given.messages("orders", 1, first=4)).created, "it was there before"
    assert sorted(_arrived(lab.broker("orders"), 5)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_source_that_a_consumer_has_opened_is_not_called_new(lab: Lab) -> None:
    lab.broker("orders")
    assert not lab.broker().publish(given.messages("orders", 1)).created
    assert not lab.broker("others").publish(given.messages("others", 1)).created


def test_a_refused_message_is_told_apart_from_those_that_are_stored(lab: Lab) -> None:
    broker = lab.broker("orders")
    bad = lab.refused_message(broker)
    good = given.messages("orders", 4)
    outcome = broker.publish([*good[:2], bad, *good[2:]])
    assert not outcome.unknown
    assert outcome.refused[2].refusal is not Refusal.NOT_SENT
    assert outcome.refused[2].reason
    if lab.is_atomic:
        others = [outcome.refused[position].refusal for position in (0, 1, 3, 4)]
        assert others == [Refusal.NOT_SENT] * 4
        assert not broker.publish(good).refused  # none of them is at fault
    else:
        assert set(outcome.refused) == {2}
    assert sorted(_arrived(lab.broker("orders"), 4)) == [b"0", b"1", b"2", b"3"]


def test_an_app_raises_one_error_from_which_the_rest_can_be_sent(lab: Lab) -> None:
    app = lab.app(max_body=None)
    app.publish("orders", b"first")
    bad = lab.refused_message(app._broker())  # noqa: SLF001 - the connection that it publishes on
    if bad.source != "orders" or bad.id != given.PLAIN_ID:
        pytest.skip("here no body is refused, only ids or sources are")
    payloads = [b"0", bad.body, b"2"]
    with pytest.raises(PublishFailed) as caught:
        app.publish_many("orders", payloads)
    error = caught.value
    told = sorted([*error.stored, *error.refused, *error.unknown])
    assert [each.position for each in told] == [0, 1, 2]
    assert [each.position for each in error.refused if each.refusal is not Refusal.NOT_SENT] == [1]
    assert error.is_about_the_messages
    rest = [each for each in told if each not in error.stored and each.position != 1]
    again = app.publish_many("orders", [payloads[each.position] for each in rest], ids=[each.id for each in rest])
    assert again == [each.id for each in rest]
    assert sorted(_arrived(lab.broker("orders"), 3)) == [b"0", b"2", b"first"]


def test_a_source_that_is_not_there_is_refused_where_nothing_may_be_made(lab: Lab) -> None:
    lab.needs(Capability.DURABLE)
    lab.broker("orders")
    broker = lab.connect()
    broker.open([], create=False)
    try:
        outcome = broker.publish([*given.messages("orders", 1), *given.messages("ordres", 1, first=1)])
    finally:
        broker.close()
    assert (outcome.refused[1].refusal, dict(outcome.unknown)) == (Refusal.NO_SUCH_SOURCE, {})
    assert set(outcome.refused) == ({0, 1} if lab.is_atomic else {1})
    assert len(_arrived(lab.broker("orders"), 0 if lab.is_atomic else 1)) == (0 if lab.is_atomic else 1)


@trait(Trait.FAULTY_BROKER)
def test_what_got_no_answer_is_unknown_and_can_be_sent_again_under_its_id(lab: Lab) -> None:
    messages = [Outgoing(str(number), "orders", b"%b %d" % (UNANSWERED, number)) for number in range(3)]
    with lab.losing_answers(UNANSWERED) as broker:
        assert not broker.publish(given.messages("orders", 1)).unknown
        outcome = broker.publish(messages)
    assert (set(outcome.unknown), dict(outcome.refused)) == ({0, 1, 2}, {})
    assert all(outcome.unknown.values()), "each has a reason"
    again = lab.broker("orders").publish([messages[position] for position in outcome.unknown])
    assert (dict(again.unknown), dict(again.refused)) == ({}, {})
    bodies = _arrived(lab.broker("orders"), 4)
    assert set(bodies) == {b"0", *(message.body for message in messages)}, "each is there, perhaps twice"


def _arrived(broker: Broker, count: int) -> list[bytes]:
    """The bodies of what can be fetched, once as many came as are waited for, and no more."""
    bodies: list[bytes] = []

    def all_came() -> bool:
        deliveries = broker.fetch("orders", 10)
        if deliveries:
            broker.settle(Settlement(gone=deliveries))
        bodies.extend(delivery.body for delivery in deliveries)
        return len(bodies) >= count

    wait_until(all_came, lambda: f"{len(bodies)} of {count} came")
    all_came()
    return bodies
