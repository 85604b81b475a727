"""A start of a suspect is on record before it begins; a start that never ended is counted, noted or not."""

import pytest

from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters, Delivery
from unpoison.port.copying.suspects import Suspect, start_alone
from unpoison.port.takeovers import CameBack


class Notes:
    def __init__(self, *found):
        self.found, self.stored, self.fails = list(found), [], False

    def find(self, stamp):
        return [*self.found, b"no note", '{"stamp":"of another","by":"c","at":1}']

    def store(self, stamp, note):
        if self.fails:
            raise BrokerUnavailable("full")
        self.stored.append(note)


def suspect(vanished):
    return Suspect(Delivery(1, "orders", "m", b"", counters=Counters(alone=True)), "stamp", vanished)


def started(suspect, notes, aside=lambda: None):
    return start_alone(suspect, "host:1", notes, CameBack(), aside, clock=lambda: 7.0)


def test_a_first_start_is_noted_and_charges_nothing():
    notes = Notes()
    assert started(suspect(0), notes).counters == Counters(alone=True)
    assert notes.stored == [b'{"stamp":"stamp","by":"host:1","at":7.0}']


def test_starts_that_never_ended_are_told_with_their_consumer_and_counted_without_one():
    noted = Notes(b'{"stamp":"stamp","by":"web:2","at":6.0}', b'{"stamp":"stamp","by":"web:1","at":5.0}')
    found = started(suspect(3), noted).counters
    assert found.losses == 3
    assert [past.error.split()[3] for past in found.history] == ["web:1", "web:2"]


def test_only_the_latest_notes_belong_to_this_copy():
    noted = Notes(b'{"stamp":"stamp","by":"earlier:1","at":5.0}', b'{"stamp":"stamp","by":"web:2","at":6.0}')
    found = started(suspect(1), noted).counters
    assert (found.losses, [past.error.split()[3] for past in found.history]) == (1, ["web:2"])


def test_what_cannot_be_noted_is_put_aside_and_not_started():
    notes, aside = Notes(), []
    notes.fails = True
    with pytest.raises(BrokerUnavailable):
        started(suspect(0), notes, lambda: aside.append(True))
    assert aside == [True]
