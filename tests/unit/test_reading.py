"""Reading a message never raises; what cannot be read keeps its bytes."""

import pytest

from unpoison.brokers.nats import envelope as nats
from unpoison.brokers.rabbitmq import envelope as rabbitmq
from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.sqs import envelope as sqs
from unpoison.decide.attempts import admit
from unpoison.model.backoff import Limits
from unpoison.model.dead_letter import iso
from unpoison.model.message import UNTRIED, Delivery
from unpoison.port.reading import Unreadable, as_bytes, as_text, read_all, unreadable
from unpoison.port.serialization import counters_or_untried


def delivery_of(number: int) -> Delivery:
    return Delivery(number, "orders", str(100 // number), b"body")


def given_up(number: int, error: Exception) -> Delivery:
    return unreadable(number, "orders", "unnamed", b"\xff", {"header": b"\xfe"}, error)


def test_only_the_message_that_cannot_be_read_is_unreadable():
    found = read_all([1, 0, 2], lambda numbers: [delivery_of(number) for number in numbers], delivery_of, given_up)
    assert [each.receipt for each in found] == [1, 0, 2]
    assert [each.body for each in found] == [b"body", b"\xff", b"body"]
    unreadable = found[1]
    assert isinstance(unreadable, Unreadable)
    failure = unreadable.failure
    assert (failure.classification, failure.rule, failure.started, failure.charged) == ("invalid", "unreadable", False, False)
    assert failure.text == "It was not started: reading its envelope raised ZeroDivisionError: integer division or modulo by zero"
    assert unreadable.envelope == r"{'header': b'\xfe'}"


def test_a_batch_without_a_fault_is_read_at_once():
    def never(*_: object) -> Delivery:
        raise AssertionError("a sound batch was read one by one")

    assert read_all([1, 2], lambda numbers: [delivery_of(number) for number in numbers], never, never)


def test_an_unreadable_message_is_never_taken_for_one_that_was_never_tried():
    assert given_up(1, ValueError()).counters is not UNTRIED  # the consumer looks closely at all others


@pytest.mark.parametrize(
    ("body", "expected"), [(None, b""), ("ü", "ü".encode()), (7, b"7"), (b"\xff", b"\xff"), (bytearray(b"x"), b"x")]
)
def test_a_body_of_any_type_has_bytes(body, expected):
    assert as_bytes(body) == expected


def test_text_of_any_type_can_be_stored():
    assert as_text(b"\xff") == "\\xff"
    as_text("\ud800").encode()


HUGE = 2**70


def test_counters_that_nobody_can_have_are_not_read():
    assert counters_or_untried(b'{"interrupted": %d}' % HUGE) == UNTRIED
    assert counters_or_untried(b'{"first_failed_at": 1e300}') == UNTRIED
    written = b'NATS/1.0\r\nx-unpoison-stamp: orders:1:0\r\nx-unpoison-counters: {"interrupted": %d}\r\n\r\n' % HUGE
    assert nats.look(written, nats.Place("orders", "", 1, 1, 1, 0)).counters == UNTRIED
    assert rabbitmq._counters({rabbitmq.COUNTERS: properties.header(b"", '{"first_failed_at":1e300}').value}) == UNTRIED
    told = {"DataType": "String", "StringValue": '{"stamp": "s", "counters": {"losses": -1}}'}
    assert sqs.look({"MessageId": "1", "Body": "", "Attributes": {}, "MessageAttributes": {"unpoison": told}}).counters == UNTRIED
    admit(counters_or_untried(b'{"attempts": 2147483647}'), Limits())


def test_a_time_beyond_all_calendars_is_shown_as_a_number():
    assert iso(1e300) == "1e+300"
    assert iso(float("nan")) == "nan"
