"""A message that was given up on is kept whole, once, with everything known about why."""

import pytest

from unpoison.app import App
from unpoison.brokers import sources_for
from unpoison.errors import ConfigError, LetterNotFound, Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.port.broker import Capability, Dead, Settlement
from unpoison.testing import given
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.running import drained

UNDECODABLE = {
    "not UTF-8": b'{"name": "\xff\xfe"}',
    "every byte there is": bytes(range(256)),
    "nothing": b"",
    "cut off": b'{"id": 1',
    "a mebibyte": bytes(range(256)) * 4096,
}


@pytest.mark.parametrize("body", UNDECODABLE.values(), ids=UNDECODABLE)
def test_undecodable_bytes_become_a_dead_letter_bit_for_bit(lab: Lab, body: bytes) -> None:
    started: list[object] = []

    def handle(payload: object) -> None:
        started.append(payload)

    app = given.consumer(lab.app(), "orders", handle)
    app.publish("orders", body, id="poison")
    app.publish("orders", {"id": 2})
    drained(app)
    (letter,) = lab.dlq("orders").peek()
    assert (letter.body, letter.message.id, letter.classification, letter.attempts) == (body, "poison", "invalid", 0)
    assert started == [{"id": 2}]


def test_the_letters_of_a_source_are_in_the_dlq_that_its_consumer_names(lab: Lab) -> None:
    def handle(payload: bytes) -> None:
        raise Permanent("no")

    app = lab.app()
    if not lab.dlq_name:
        with pytest.raises(ConfigError, match="have no name of their own"):
            app.consumer("orders", dlq="lost-orders")(handle)
        return
    app.consumer("orders", dlq=lab.dlq_name, isolation="inline")(handle)
    for body in (b"1", b"2", b"3"):
        app.publish("orders", body)
        drained(app)
    dlq = app.dlq("orders")
    first, second, _ = dlq.peek()
    assert (dlq.count(), dlq.source, {letter.source for letter in dlq.letters()}) == (3, "orders", {"orders"})
    assert dlq.replay_one(first.id)
    dlq.discard(second.id)
    drained(app)
    found = sorted((letter.state, letter.body) for letter in dlq.letters(state=None))
    assert found == [("dead", b"1"), ("dead", b"3"), ("discarded", b"2"), ("replayed", b"1")]
    assert (dlq.count(), dlq.purge().purged) == (2, 2)


def test_equal_messages_are_two_dead_letters(lab: Lab) -> None:
    def handle(payload: bytes) -> None:
        raise Permanent("no")

    app = given.consumer(lab.app(), "orders", handle)
    app.publish_many("orders", [b"same", b"same"])
    app.publish("orders", b"same", id="same")
    app.publish("orders", b"same", id="same")
    drained(app)
    letters = lab.dlq("orders").peek()
    assert [letter.body for letter in letters] == [b"same"] * 4
    assert len({letter.id for letter in letters}) == 4


def test_a_filter_chooses_what_is_replayed_discarded_and_purged(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [f'{{"n": {n}}}'.encode() for n in range(6)])
    dlq = lab.dlq("orders")
    chosen = dlq.select("body.n<2 -class:crash")
    assert dlq.replay_all(where=chosen).replayed == chosen.ids
    assert dlq.discard_all(where="body.n:2").count == 1
    assert sorted(letter.body for letter in dlq.letters(where="body.n:*")) == [b'{"n": 3}', b'{"n": 4}', b'{"n": 5}']
    assert sorted(letter.state for letter in dlq.letters(where="-state:dead")) == ["discarded", "replayed", "replayed"]
    purged = dlq.purge(where="body.n:3 or state:discarded")
    assert (purged.purged, purged.history) == (1, 1)
    assert (dlq.count(), dlq.count("state:replayed"), dlq.count("state:discarded")) == (2, 2, 0)


def test_the_broker_tells_which_sources_there_are(lab: Lab) -> None:
    lab.needs(Capability.SHARED)
    for source in ("orders", "emails"):
        given.dead_letters(lab, source, [b"1"])
    assert list(sources_for(lab.administrators_url)) == ["emails", "orders"]


def test_the_log_names_each_letter(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Messages that wait and those that never did, done ones beside them: each event has the id of its own letter."""

    def handle(number: int) -> None:
        if number % 2:
            raise Permanent("odd") if number < 5 else ConnectionError("odd")

    app = given.consumer(lab.app(), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    app.publish_many("orders", list(range(8)))
    drained(app)
    told = {
        record.__dict__["message_id"]: record.__dict__["letter_id"]
        for record in caplog.records
        if record.__dict__.get("event") == "dead"
    }
    assert len(told) == 4
    assert told == {letter.message.id: letter.id for letter in lab.dlq("orders").letters()}


def test_a_letter_tells_what_happened(lab: Lab) -> None:
    def handle(payload: object) -> None:
        raise ConnectionError("the printer is on fire")

    app = given.consumer(lab.app(code_version="v7"), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    app.publish("orders", {"id": 1})
    drained(app)
    (letter,) = lab.dlq("orders").peek()
    assert (letter.source, letter.state, letter.attempts, letter.replays) == ("orders", "dead", 2, 0)
    assert (letter.classification, letter.error_type, letter.error) == ("transient", "ConnectionError", "the printer is on fire")
    assert "attempt 2 of 2" in letter.rule
    assert letter.reason
    assert 'raise ConnectionError("the printer is on fire")' in letter.traceback
    assert letter.fingerprint
    assert letter.consumer
    assert letter.code_version == "v7"
    assert [past.attempt for past in letter.history] == [1, 2]
    assert letter.first_failed_at <= letter.last_failed_at


def test_a_letter_says_where_its_message_stood_and_a_retry_changes_nothing_in_that(lab: Lab) -> None:
    def handle(payload: str, delivery: Delivery) -> None:
        raise Permanent("no") if payload == "at once" or delivery.attempt > 1 else ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", handle, schema=str, backoff=Backoff.immediate())
    app.publish_many("orders", ["at once", "after a retry"])
    drained(app)
    letters = lab.dlq("orders").peek()
    assert len(letters) == 2
    assert {letter.original["source"] for letter in letters} == {"orders"}
    assert len({frozenset(letter.original) for letter in letters}) == 1, "the retry's own place is shown"
    shown = {str(value) for letter in letters for name, value in letter.original.items() if name != "offset"}
    internal = ("-", "delivery", "unpoison.", "<")
    assert not [value for value in shown if value.startswith(internal)], "what only the adapter understands is shown"
    assert "receipt" not in letters[0].original


def test_what_the_sender_wrote_survives_retry_dead_letter_and_replay(lab: Lab) -> None:
    received: list[Delivery] = []

    def handle(payload: bytes, delivery: Delivery) -> None:
        received.append(delivery)
        if len(received) < 3:
            raise ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    body, headers = bytes(range(256)), {"trace": "ü\n", "empty": "", "X": "1", "x": "2"}
    app.publish("orders", body, key="customer-7", headers=headers, id="order-1")
    drained(app)
    (letter,) = lab.dlq("orders").peek()
    assert (letter.body, letter.message.key, letter.message.id) == (body, "customer-7", "order-1")
    assert dict(letter.message.headers) == headers
    lab.dlq("orders").replay_one()
    drained(app)
    assert [(each.body, each.key, each.id, dict(each.headers)) for each in received] == [
        (body, "customer-7", "order-1", headers)
    ] * 3


def test_a_replayed_message_begins_with_its_first_attempt(lab: Lab) -> None:
    seen: list[int] = []

    def handle(payload: object, delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        raise ConnectionError("never")

    app = given.consumer(lab.app(), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    app.publish("orders", 1)
    drained(app)
    lab.dlq("orders").replay_one()
    drained(app)
    assert seen == [1, 2, 1, 2]


def test_a_replayed_message_that_fails_again_is_a_new_letter_and_the_old_one_stays_replayed(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1"])
    dlq = lab.dlq("orders")
    (old,) = dlq.peek()
    for replays in (1, 2):
        dlq.replay_one()
        drained(_failing(lab))
        (new,) = dlq.peek()
        assert new.replays == replays
        assert new.id != old.id
        assert dlq.get(old.id).state == "replayed"
    assert [letter.state for letter in dlq.letters(state=None)] == ["replayed", "replayed", "dead"]


def test_a_replay_of_messages_that_fail_again_ends(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [str(n).encode() for n in range(250)])
    app, dlq = _failing(lab), lab.dlq("orders", page=100)

    def fail_again(handled: int, total: int) -> None:
        drained(app)
        assert total == 250

    result = dlq.replay_all(progress=fail_again)
    assert (result.count, len(result.gone)) == (250, 0)
    assert dlq.count() == 250


@trait(Trait.ORDERED)
def test_letters_come_oldest_first_and_looking_changes_nothing(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1", b"2", b"3"])
    dlq = lab.dlq("orders")
    for _ in range(2):
        assert [letter.body for letter in dlq.peek(2)] == [b"1", b"2"]
        assert [letter.body for letter in dlq.letters()] == [b"1", b"2", b"3"]
        assert dlq.count() == 3
    assert lab.broker("orders").depth("orders").empty


@trait(Trait.ORDERED)
def test_replay_one_takes_the_oldest_or_the_one_that_is_named(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1", b"2", b"3"])
    dlq = lab.dlq("orders")
    third = dlq.peek()[2]
    assert dlq.replay_one(third.id).replayed == (third.id,)
    assert dlq.replay_one()
    assert sorted(delivery.body for delivery in lab.broker("orders").fetch("orders", 10)) == [b"1", b"3"]
    assert [letter.body for letter in dlq.peek()] == [b"2"]


def test_a_letter_is_replayed_once(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1"])
    dlq = lab.dlq("orders")
    (letter,) = dlq.peek()
    dlq.replay_one(letter.id)
    with pytest.raises(LetterNotFound, match="already replayed"):
        dlq.replay_one(letter.id)
    with pytest.raises(LetterNotFound, match="already replayed"):
        dlq.discard(letter.id)
    assert not dlq.replay_one()
    assert not dlq.replay_all()
    assert len(lab.broker("orders").fetch("orders", 10)) == 1


def test_a_letter_that_is_not_there_is_named_in_the_error(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1"])
    given.dead_letters(lab, "others", [b"1"])
    foreign = lab.dlq("others").peek()[0].id
    for wrong in ("nonsense", "orders-999", "orders-01", "orders-", "-1", "", f"orders-{'9' * 5000}", foreign):
        with pytest.raises(LetterNotFound, match="does not exist"):
            lab.dlq("orders").replay_one(wrong)
        with pytest.raises(LetterNotFound, match="does not exist"):
            lab.dlq("orders").discard(wrong)
    assert (lab.dlq("orders").count(), lab.dlq("others").count()) == (1, 1)


def test_a_letter_can_be_named_by_its_message(lab: Lab) -> None:
    app = _failing(lab)
    app.publish("orders", b"1", id="order-1")
    app.publish("orders", b"2", id="twin")
    app.publish("orders", b"3", id="twin")
    drained(app)
    dlq = lab.dlq("orders")
    assert dlq.get("order-1").body == b"1"
    assert dlq.replay_one("order-1")
    with pytest.raises(LetterNotFound, match="2 dead letters"):
        dlq.replay_one("twin")
    assert dlq.count() == 2


def test_a_discarded_letter_stays_visible_and_is_not_replayed(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1", b"2"])
    dlq = lab.dlq("orders")
    first = dlq.discard(dlq.peek()[0].id)
    assert dlq.get(first.id).state == "discarded"
    assert dlq.count() == 1
    assert dlq.replay_all().count == 1
    broker = lab.broker("orders")
    assert broker.depth("orders").dead == dlq.count() == 0
    assert [delivery.body for delivery in broker.fetch("orders", 10)] == [b"2"]


def test_a_purge_deletes_every_letter_of_its_source_and_sends_none(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [str(n).encode() for n in range(120)])
    given.dead_letters(lab, "others", [b"1"])
    dlq = lab.dlq("orders")
    dlq.discard(dlq.peek()[0].id)
    result = dlq.purge()
    assert (result.purged, result.history) == (119, 1)
    assert (dlq.count(), list(dlq.letters(state=None)), lab.dlq("others").count()) == (0, [], 1)
    assert lab.broker("orders").depth("orders").empty


def test_a_purge_of_the_history_deletes_no_letter_that_waits(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1", b"2", b"3"])
    dlq = lab.dlq("orders")
    dlq.discard(dlq.peek()[0].id)
    result = dlq.purge(history=True)
    assert (result.purged, result.history) == (0, 1)
    assert {letter.body for letter in dlq.letters(state=None)} <= {b"1", b"2", b"3"}
    assert dlq.count() == len(list(dlq.letters(state=None))) == 2


def test_a_purge_does_not_stop_a_replayed_message(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1"])
    lab.dlq("orders").replay_all()
    lab.dlq("orders").purge()
    assert [delivery.body for delivery in lab.broker("orders").fetch("orders", 10)] == [b"1"]


@trait(Trait.ORDERED)
def test_letters_of_one_batch_keep_their_order(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 5))
    broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery)) for delivery in broker.fetch("orders", 5)]))
    assert [letter.body for letter in lab.dlq("orders").letters()] == [b"0", b"1", b"2", b"3", b"4"]


def _failing(lab: Lab) -> App:
    def fail(payload: bytes) -> None:
        raise Permanent("no")

    return given.consumer(lab.app(), "orders", fail)
