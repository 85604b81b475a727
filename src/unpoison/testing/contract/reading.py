"""Reading a message never raises: what cannot be read, even by a fault of our own, is a dead letter and stops nobody."""

from unpoison.model.message import Counters
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.lab import Lab
from unpoison.testing.running import Journal, drained

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
