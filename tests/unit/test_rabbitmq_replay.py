"""Is a letter that we wrote sent again just as one that has to be read in full?"""

import pytest

from unpoison.brokers.rabbitmq import envelope, letters, properties
from unpoison.brokers.rabbitmq.properties import Header
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.fingerprint import renewed
from unpoison.model.message import Counters, Message, PastAttempt

HISTORY = "orders.dlq.history"
SENDERS = [
    properties.header(b"trace", "a"),
    properties.header(b"trace", "b"),
    properties.header(b"weight", 1.5),
    Header(b"odd", b"S\x00\x00\x00\x01\xff"),
]
BROKERS = [properties.header(b"x-delivery-count", 3), properties.header(b"x-first-death-queue", "orders")]
KINDS = {
    "ordinary": {},
    "crash": {"classification": "crash"},
    "replayed before": {"replays": 4},
    "long": {"error": "é" * 5_000, "traceback": "x" * 100_000},
}


@pytest.fixture
def letter_in_the_dlq():
    def make(extra=(), headers=SENDERS, message_id="order-1", **fields):
        like = properties.read(properties.write(message_id[:255], headers))
        route, attempts = ("shop", "orders.new"), b"I\x00\x00\x00\x07"
        original = envelope.Envelope(
            message_id, "customer-7", {}, "stamp-1", Counters(), 0, 0.0, route, "60000", attempts, properties=like
        )
        known = {
            "attempts": 3,
            "classification": "permanent",
            "rule": "rule",
            "reason": "reason",
            "error_type": "ValueError",
            "error": "no total",
            "first_failed_at": 1.0,
            "last_failed_at": 2.0,
            "history": (PastAttempt(1, 1.0, "transient", "ConnectionError: gone"),),
        } | fields
        letter = renewed(DeadLetter(message=Message(message_id, "orders", b"{}"), **known))
        written = properties.read(letters.written(letter, original, "orders-1"))
        return Arrived(1, True, properties.write(written.id, [*written.headers.entries, *extra], written), b"{}")

    return make


def sent(arrived, history=HISTORY):
    alone, data = letters.again("orders", arrived, "orders-1", history)
    found = properties.read(data)
    return alone, found.id, sorted(found.headers.entries), found.others


@pytest.fixture
def read_in_full(monkeypatch):
    def read(arrived, history=HISTORY):
        with monkeypatch.context() as patched:
            patched.setattr(letters, "_ours_again", lambda *_: None)
            return sent(arrived, history)

    return read


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_the_short_way_writes_what_the_long_one_does(letter_in_the_dlq, read_in_full, fields):
    arrived = letter_in_the_dlq(**fields)
    assert letters._ours_again(arrived, "orders-1", HISTORY) is not None
    assert sent(arrived) == read_in_full(arrived)


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_without_a_history_nothing_of_the_letter_goes_along(letter_in_the_dlq, read_in_full, fields):
    arrived = letter_in_the_dlq(**fields)
    found = sent(arrived, None)
    assert found == read_in_full(arrived, None)
    ours = {b"x-unpoison-%s" % name for name in (b"stamp", b"key", b"counters", b"exchange", b"routing-key", b"expiration")}
    names = [name for name, _ in found[2]]
    assert set(names) == ours | {b"trace", b"weight", b"odd", b"x-delivery-attempts", b"x-unpoison-senders-attempts"}
    assert names.count(b"trace") == 2


def test_what_the_broker_added_in_the_dlq_does_not_go_along(letter_in_the_dlq, read_in_full):
    arrived = letter_in_the_dlq(extra=BROKERS)
    assert sent(arrived) == read_in_full(arrived) == sent(letter_in_the_dlq())


def test_a_letter_that_was_moved_back_and_died_again_is_read_in_full(letter_in_the_dlq):
    death = properties.header(b"x-death", "whatever RabbitMQ noted")
    assert letters._ours_again(letter_in_the_dlq(extra=[death]), "orders-1", HISTORY) is None


def test_a_message_with_a_long_id_keeps_it(letter_in_the_dlq, read_in_full):
    arrived = letter_in_the_dlq(message_id="x" * 300)
    assert sent(arrived) == read_in_full(arrived)


@pytest.mark.parametrize("missing", [envelope.RECORD, envelope.LETTER, envelope.STATE, envelope.STAMP], ids=bytes.decode)
def test_a_letter_that_lacks_what_we_write_is_read_in_full(letter_in_the_dlq, missing):
    arrived = letter_in_the_dlq()
    like = properties.read(arrived.properties)
    without = [each for each in like.headers.entries if each.name != missing]
    assert letters._ours_again(Arrived(1, True, properties.write(like.id, without), b"{}"), "orders-1", HISTORY) is None


def test_a_record_that_another_program_wrote_is_read_in_full(letter_in_the_dlq):
    arrived = letter_in_the_dlq()
    like = properties.read(arrived.properties)
    foreign = [
        properties.header(b"x-unpoison-letter", "[1]") if each.name == envelope.RECORD else each for each in like.headers.entries
    ]
    arrived = Arrived(1, True, properties.write(like.id, foreign), b"{}")
    alone, _, headers, _ = sent(arrived)
    assert not alone
    assert (b"x-unpoison-state", properties.header(b"", "replayed").value) in headers
