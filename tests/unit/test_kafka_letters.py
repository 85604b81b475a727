"""What became of letters is known whatever goes wrong while the logs are read."""

from types import SimpleNamespace

import msgspec
import pytest

from unpoison.brokers.kafka.letters import Claim, LetterStates, Outcome, Withdrawal
from unpoison.brokers.kafka.names import Names
from unpoison.errors import BrokerUnavailable

NAMES = Names("orders", "unpoison")
DLQ, STATES = (NAMES.dlq, 0), (NAMES.states, 0)


class Read:
    """A record as the client gives it."""

    def __init__(self, place, offset, value=b"", key=None):
        self.place, self.at, self.text, self.name = place, offset, value, key

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

    def must_store(self, records, what):
        for record in records:
            self.records[STATES].append(Read(STATES, len(self.records[STATES]), record.value, record.key))

    def compacted(self):
        """As the server leaves it: of each key the last entry."""
        last = {record.name: record for record in self.records[STATES]}
        self.records[STATES] = [record for record in self.records[STATES] if last[record.name] is record]
        return self

    def bounds(self, places):
        return {place: (0, max((record.at + 1 for record in self.records[place]), default=0)) for place in places}

    def read(self, stretches):
        for place, (start, end) in stretches.items():
            there = [record for record in self.records[place] if start <= record.at < end]
            for count, record in enumerate(there):
                if count == self.cut_after:
                    raise BrokerUnavailable("cut off")
                yield record


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def states(log):
    return states_of(log)


def states_of(log):
    return LetterStates(SimpleNamespace(queries=log, must_store=log.must_store), NAMES, log, 1)


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


def test_what_the_server_deletes_of_the_log_changes_nothing(log, states):
    """It keeps the last entry of each key. A slow operator may withdraw a claim again, for some of its letters."""
    log.add(DLQ, b"0", b"1")
    states.refresh()
    first, second = states.by_id
    states.write(dict.fromkeys([first, second], Claim("dead", "replayed", "one", "a")), "claiming")
    states.write(dict.fromkeys([first, second], Withdrawal("a")), "withdrawing")
    states.write({second: Claim("dead", "replayed", "two", "b")}, "claiming")
    states.write({second: Outcome("replayed", "b")}, "replaying")
    states.write({first: Withdrawal("a")}, "withdrawing again")
    found = states_of(log.compacted())
    found.refresh()
    assert {id_: (entry.state, entry.claim) for id_, entry in found.by_id.items()} == {
        first: ("dead", None),
        second: ("replayed", None),
    }
