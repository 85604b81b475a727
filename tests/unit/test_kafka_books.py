"""What became of letters is known whatever goes wrong while the logs are read."""

import msgspec
import pytest

from unpoison.brokers.kafka.letter_states import Books, Claim, Settled
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

    def ends(self, places, *, first=False):
        return {place: 0 if first else len(self.records[place]) for place in places}

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
def books(log):
    return Books(log, NAMES, log, 1)


def claim(nonce, state="replayed", was="dead"):
    return Claim("orders-0", was, state, "somebody", nonce)


def test_a_letter_whose_end_was_known_before_it_was_read_stays_ended_if_reading_is_cut_off(log, books):
    log.tell(claim("a"), Settled("orders-0", "replayed", "a"))
    books.refresh()
    log.add(DLQ, b"0", b"1")
    log.cut_after = 1
    with pytest.raises(BrokerUnavailable):
        books.refresh()
    log.cut_after = None
    books.refresh()
    assert {id_: entry.state for id_, entry in books.entries.items()} == {"orders-0": "replayed", "orders-1": "dead"}


def test_the_first_claim_has_the_letter_and_only_its_word_counts(log, books):
    log.add(DLQ, b"0")
    log.tell(claim("a"), claim("b", "discarded"), Settled("orders-0", "discarded", "b"))
    books.refresh()
    assert (books.entries["orders-0"].state, books.entries["orders-0"].claim.nonce) == ("dead", "a")
    log.tell(Settled("orders-0", "replayed", "a"), claim("c", "purged"), Settled("orders-0", "purged", "c"))
    books.refresh()
    assert (books.entries["orders-0"].state, books.entries["orders-0"].claim) == ("replayed", None)
