"""Notes of delays: enough of them that none is missed, and no more."""

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.delays import MARGIN, SLACK, DelayNotes


def noted(notes, **delays):
    """For which sources a note is written, and the seconds after which it expires."""
    found = notes.needed(delays.items())
    assert all(note.exchange == "" and note.body == b"" for note in found)
    return {note.routing_key: int(properties.read(note.properties).expiration) / 1000 for note in found}


def test_a_note_expires_a_little_after_its_message_is_back():
    assert noted(DelayNotes(lambda: 0.0), orders=10.0, mails=0.0) == {"orders.delayed": 10.0 + MARGIN}


def test_one_note_stands_for_all_that_is_back_before_it_expires():
    now = [0.0]
    notes = DelayNotes(lambda: now[0])
    assert noted(notes, orders=10.0)
    assert not noted(notes, orders=9.0)
    assert noted(notes, mails=9.0)
    now[0] = MARGIN - SLACK
    assert not noted(notes, orders=10.0)
    now[0] += 0.1
    assert noted(notes, orders=10.0)


def test_the_longest_delay_of_a_source_counts():
    notes = DelayNotes(lambda: 0.0)
    (note,) = notes.needed([("orders", 3.0), ("orders", 10.0), ("orders", 0.0)])
    assert properties.read(note.properties).expiration == "12000"
    assert notes.needed([("orders", 10.0)]) == []


def test_what_may_not_have_been_stored_is_written_again():
    notes = DelayNotes(lambda: 0.0)
    assert noted(notes, orders=10.0)
    notes.forget()
    assert noted(notes, orders=10.0)


def test_a_delay_longer_than_a_message_can_live_is_noted_for_as_long_as_it_can():
    assert noted(DelayNotes(lambda: 0.0), orders=1e9) == {"orders.delayed": 4294967.295}
