"""What was published is stored, refused or unknown, and whatever arrives can be read."""

from collections.abc import Callable
from typing import Any

import pytest

from unpoison.app import App
from unpoison.errors import Permanent, PublishFailed, Refusal
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery, Native, Outgoing, text_headers
from unpoison.port.broker import Broker, Capability, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.running import Journal, drained

UNANSWERED = b"unanswered"


def test_a_publish_says_that_all_is_stored_and_which_source_it_has_made(lab: Lab) -> None:
    broker = lab.broker()
    first = broker.publish(given.messages("orders", 3))
    created = set() if lab.has_sources else {"orders"}
    assert (dict(first.refused), dict(first.unknown), set(first.created)) == ({}, {}, created)
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


# Reading a message never raises: what cannot be read, even by a fault of our own, is a dead letter and stops no other message.


MARKER = "cannot-be-read"
SUSPECT = Counters(vanished=2, alone=True)


def test_a_message_that_cannot_be_read_is_a_dead_letter_wherever_it_waits(lab: Lab) -> None:
    seen: list[bytes] = []

    def handle(body: bytes) -> None:
        seen.append(body)

    places = {"retried": Counters(attempts=1), "suspect": SUSPECT, "returned": None}
    for place, counters in places.items():
        _left_behind(lab, place, counters)
    app = given.consumer(lab.app(), "orders", handle)
    app.publish_many("orders", [b"before"])
    app.publish("orders", _body("new"), id=f"{MARKER}-new")
    app.publish_many("orders", [b"after"])
    expected = sorted(map(_body, ("new", *places)))
    with lab.unreadable(MARKER.encode()):
        with Journal() as journal:
            drained(app)
        assert sorted(seen) == [b"after", b"before"]
        assert not journal.errors()
        letters = lab.dlq("orders").peek()
        assert sorted(letter.body for letter in letters) == expected
    for letter in lab.dlq("orders").peek():
        assert (letter.classification, letter.rule, letter.attempts) == ("invalid", "invalid: unreadable", 0)
        assert letter.error_type == "unpoison.Unreadable"
        assert "ReadingFault: this message cannot be read" in letter.error
        assert letter.original["envelope"]
    _is_sound_once_the_fault_is_gone(lab, expected)


def _is_sound_once_the_fault_is_gone(lab: Lab, expected: list[bytes]) -> None:
    again: list[bytes] = []

    def handle(body: bytes) -> None:
        again.append(body)

    app = given.consumer(lab.app(), "orders", handle)
    assert lab.dlq("orders").replay_all().count == len(expected)
    drained(app)
    assert sorted(again) == expected
    assert not lab.dlq("orders").peek()


def _body(place: str) -> bytes:
    return f"{MARKER}: {place}".encode()


def _left_behind(lab: Lab, place: str, counters: Counters | None) -> None:
    """A message in the hands of a consumer that settles it with these counters, or goes without a word."""
    broker = lab.broker("orders")
    lab.app().publish("orders", _body(place), id=f"{MARKER}-{place}")
    (delivery,) = [each for each in broker.fetch("orders", 10) if each.body == _body(place)]
    if counters is not None:
        broker.settle(Settlement(kept=[Kept(delivery, counters)]))
    lab.close()


# What a handler sees of a message is the same on every broker: texts by one rule, and beside them what the broker really has.


HEADERS = [("plain", "grüße".encode()), ("odd", b"a\xff\x01"), ("twice", b"first"), ("twice", b"last")]
KEY = b"key-\xfe"


def test_texts_are_made_of_any_headers_by_one_rule_on_every_broker(lab: Lab) -> None:
    """From any sender, with any bytes: what is not UTF-8 is escaped, and of two with one name the last counts, if both come."""
    sent = lab.send_foreign(b"1", KEY, HEADERS)
    (seen,) = _seen(lab)
    assert (seen.body, seen.id != "", seen.is_tombstone) == (b"1", True, False)
    assert seen.native.key == sent.key
    assert seen.key == (None if sent.key is None else "key-\\xfe" if sent.key == KEY else sent.key.decode())
    assert sorted(seen.native.headers, key=_name) == sorted(sent.headers, key=_name)  # attributes of SQS are in no order
    expected = {"plain": "grüße", "odd": "a\\xff\x01", "twice": dict(sent.headers).get("twice", b"").decode()}
    assert dict(seen.headers) == {name: expected[name] for name, _ in sent.headers}
    assert {name: seen.native.properties[name] for name in sent.properties} == sent.properties


def test_natives_stay_what_they_were_through_retry_dead_letter_and_replay(lab: Lab) -> None:
    bodies = [b"1", b"2"] if type(lab).send_foreign is not Lab.send_foreign else [b"2"]
    if b"1" in bodies:
        lab.send_foreign(b"1", KEY, HEADERS)
    lab.app().publish("orders", b"2", key="k", headers={"trace": "世界", "empty": ""})
    first, again, replayed = _three_starts(lab, len(bodies))
    for body in bodies:
        native = first[body].native
        for later in (again[body].native, replayed[body].native):
            assert later.key == native.key
            assert sorted(later.headers, key=_name) == sorted(native.headers, key=_name)
            assert later.properties.keys() == native.properties.keys()
            for name in lab.lasting:
                assert later.properties[name] == native.properties[name], name


def test_what_unpoison_sends_is_native_too_without_headers_of_its_own(lab: Lab) -> None:
    app = lab.app()
    app.publish("orders", b"1", key="ключ", headers={"trace": "世界", "x": ""})
    app.publish("orders", b"2")
    full, bare = sorted(_seen(lab, app), key=lambda delivery: delivery.body)
    assert full.native.key == "ключ".encode()
    assert sorted(full.native.headers) == [("trace", "世界".encode()), ("x", b"")]
    assert dict(text_headers(full.native.headers)) == dict(full.headers)
    assert (bare.native.key, bare.native.headers) == (None, ())
    assert set(bare.native.properties) == set(full.native.properties)


def test_a_handler_that_takes_no_delivery_costs_no_native(lab: Lab) -> None:
    """The adapter is not asked for what no handler reads."""
    asked: list[Delivery] = []
    app = lab.app()
    app.publish("orders", b"1")

    def handle(body: bytes) -> None: ...

    broker = lab.broker("orders")
    broker.native = _asking(asked)  # type: ignore[attr-defined]
    given.consumed(given.consumer(app, "orders", handle), "orders", broker)
    assert asked == []


def _name(header: tuple[str, Any]) -> str:
    return header[0]


def _asking(asked: list[Delivery]) -> Callable[[Delivery], Native]:
    def native(delivery: Delivery) -> Native:
        asked.append(delivery)
        return Native()

    return native


def _seen(lab: Lab, app: App | None = None) -> list[Delivery]:
    seen: list[Delivery] = []

    def handle(body: bytes, delivery: Delivery) -> None:
        seen.append(delivery)

    drained(given.consumer(app or lab.app(), "orders", handle))
    return seen


def _three_starts(lab: Lab, count: int) -> list[dict[bytes, Delivery]]:
    """A first start, a retry, which fails for good, and the start after a replay."""
    starts: list[dict[bytes, Delivery]] = [{}, {}, {}]

    def handle(body: bytes, delivery: Delivery) -> None:
        starts[delivery.attempt - 1][body] = delivery
        raise ConnectionError if delivery.attempt == 1 else Permanent("as asked")

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.immediate())
    drained(app)
    app.close()
    assert lab.dlq("orders").replay_all().count == count
    starts[2] = {delivery.body: delivery for delivery in _seen(lab)}
    return starts
