"""What became of letters is known whatever goes wrong while the logs are read."""

from types import SimpleNamespace

import msgspec
import pytest

from unpoison.brokers.kafka.letters import Claim, LetterStates, Outcome
from unpoison.brokers.kafka.names import Names
from unpoison.errors import BrokerUnavailable

NAMES = Names("orders", "unpoison")
DLQ, STATES = (NAMES.dlq, 0), (NAMES.states, 0)


class Read:
    """A record as the client gives it."""

    def __init__(self, place, offset, value=b""):
        self.place, self.at, self.text = place, offset, value

    def topic(self):
        return self.place[0]

    def partition(self):
        return self.place[1]

    def offset(self):
        return self.at

    def value(self):
        return self.text

    def headers(self):
        return []


class Log:
    """Two logs that grow. Reading them can be cut off."""

    def __init__(self):
        self.records = {DLQ: [], STATES: []}
        self.cut_after = None

    def add(self, place, *values):
        for value in values:
            self.records[place].append(Read(place, len(self.records[place]), value))

    def tell(self, *entries):
        self.add(STATES, *map(msgspec.json.encode, entries))

    def bounds(self, places):
        return {place: (0, len(self.records[place])) for place in places}

    def read(self, stretches):
        for place, (start, end) in stretches.items():
            for count, record in enumerate(self.records[place][start:end]):
                if count == self.cut_after:
                    raise BrokerUnavailable("cut off")
                yield record


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def states(log):
    return LetterStates(SimpleNamespace(queries=log), NAMES, log, 1)


def claim(nonce, state="replayed", was="dead"):
    return Claim(was, state, "somebody", nonce, letters=("orders-0",))


def outcome(state, nonce):
    return Outcome(state, nonce, ("orders-0",))


def test_a_letter_whose_end_was_known_before_it_was_read_stays_ended_if_reading_is_cut_off(log, states):
    log.tell(claim("a"), outcome("replayed", "a"))
    states.refresh()
    log.add(DLQ, b"0", b"1")
    log.cut_after = 1
    with pytest.raises(BrokerUnavailable):
        states.refresh()
    log.cut_after = None
    states.refresh()
    assert {id_: entry.state for id_, entry in states.by_id.items()} == {"orders-0": "replayed", "orders-1": "dead"}


def test_the_first_claim_has_the_letter_and_only_its_word_counts(log, states):
    log.add(DLQ, b"0")
    log.tell(claim("a"), claim("b", "discarded"), outcome("discarded", "b"))
    states.refresh()
    assert (states.by_id["orders-0"].state, states.by_id["orders-0"].claim.nonce) == ("dead", "a")
    log.tell(outcome("replayed", "a"), claim("c", "purged"), outcome("purged", "c"))
    states.refresh()
    assert (states.by_id["orders-0"].state, states.by_id["orders-0"].claim) == ("replayed", None)
