"""Which dead letters are there, and what became of each?

A log cannot delete a record from its middle. So letters stay where they are, and what became of them is written into another log,
`<topic>.dlq.states`. It has one partition: its order decides between two operators. There are three kinds of entries:

    claim    an operator is about to change a letter. The first one in the log wins.
    state    the letter was replayed, discarded or purged. It counts if the claim that it names has won.
    drop     the operator is gone, and had not changed it: the claim is withdrawn, and the letter waits as before.

Letters that are changed together share an entry (`claims`, `states`): there may be a hundred thousand of them. Each letter is
listed once, even if a crash left it twice in the DLQ.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.connection import Connection, Reader
from unpoison.brokers.kafka.envelope import ID, NewRecord, Record, headers_of, text
from unpoison.brokers.kafka.names import Names
from unpoison.port.serialization import LETTER_ID, STAMP, UNREADABLE

DEAD, PURGED = "dead", "purged"
LETTERS_PER_ENTRY = 500
"""How many letters share an entry of the log."""


class Claim(msgspec.Struct, frozen=True, tag="claim", tag_field="kind"):
    letter: str
    was: str
    state: str
    operator: str
    nonce: str
    retry: str = ""
    partition: int = 0
    end: int = 0
    """Of a replay: where its copy belongs, and where that partition ended before. A copy that was sent has a higher offset."""

    @property
    def place(self) -> PartitionKey:
        return self.retry, self.partition


class Outcome(msgspec.Struct, frozen=True, tag="state", tag_field="kind"):
    letter: str
    state: str
    nonce: str


class Withdrawal(msgspec.Struct, frozen=True, tag="drop", tag_field="kind"):
    letter: str
    nonce: str


class Claims(msgspec.Struct, frozen=True, tag="claims", tag_field="kind"):
    """Several claims that differ in nothing but the letter. The nonce of each ends with its letter."""

    letters: list[str]
    was: str
    state: str
    operator: str
    nonce: str
    retry: str = ""
    partition: int = 0
    end: int = 0

    def each(self) -> Iterator[Claim]:
        shared = (self.was, self.state, self.operator)
        for id_ in self.letters:
            yield Claim(id_, *shared, nonce_of(self.nonce, id_), self.retry, self.partition, self.end)


class Outcomes(msgspec.Struct, frozen=True, tag="states", tag_field="kind"):
    """Several outcomes that differ in nothing but the letter."""

    letters: list[str]
    state: str
    nonce: str

    def each(self) -> Iterator[Outcome]:
        return (Outcome(id_, self.state, nonce_of(self.nonce, id_)) for id_ in self.letters)


_decoder = msgspec.json.Decoder(Claim | Outcome | Withdrawal | Claims | Outcomes)


LogEntry = Claim | Outcome | Withdrawal | Claims | Outcomes


def nonce_of(shared: str, letter: str) -> str:
    """The nonce of one letter among several that are changed together."""
    return f"{shared}.{letter}"


class LetterState(msgspec.Struct, gc=False):
    """One letter: where it stands, and what became of it."""

    id: str
    place: PartitionKey
    offset: int
    at: int
    """Which of all letters it is, in the order in which they came."""
    message: str
    """The id of its message."""
    state: str = DEAD
    claim: Claim | None = None
    settled_by: str = ""


class LetterStates:
    def __init__(self, connection: Connection, names: Names, reader: Reader, partitions: int, *, has_states: bool = True) -> None:
        """`partitions` are those of the DLQ. Where either topic is missing there is nothing to read of it."""
        self._connection, self._names, self._reader = connection, names, reader
        self._letters = [(names.dlq, number) for number in range(partitions)]
        self._states: PartitionKey = (names.states, 0)
        self._has_states = has_states
        self._clear()

    def _clear(self) -> None:
        """Forget all that was read."""
        self._read: dict[PartitionKey, int] = dict.fromkeys(self._letters, 0)
        self._states_read = 0
        self._early: dict[str, list[Claim | Outcome | Withdrawal]] = {}
        self._identities: set[bytes | str] = set()
        self.by_id: dict[str, LetterState] = {}
        self.order: list[LetterState] = []
        self._places: dict[PartitionKey, PartitionKey] = {}

    def refresh(self) -> None:
        """Read what was written since the last time."""
        places = [*self._read, *([self._states] if self._has_states else [])]
        ends, begins = self._connection.queries.ends(places), self._connection.queries.ends(places, first=True)
        if any(ends[place] < (self._states_read if place == self._states else self._read[place]) for place in places):
            self._clear()  # a topic was deleted and created again
        letters = {place: (max(start, begins[place]), ends[place]) for place, start in self._read.items()}
        records: Iterable[Record] = self._reader.read(letters)
        if len(letters) > 1:  # or letters would be in the order of partitions and not of time
            records = sorted(records, key=lambda each: (each.timestamp()[1], each.partition(), each.offset()))
        for record in records:
            self._add(record)
        self._read = {place: end for place, (_, end) in letters.items()}
        if not self._has_states:
            return
        stretch = (max(self._states_read, begins[self._states]), ends[self._states])
        for record in self._reader.read({self._states: stretch}):
            self._note(record)
            self._states_read = record.offset() + 1
        self._states_read = stretch[1]

    def _add(self, record: Record) -> None:
        place, offset = (record.topic(), record.partition()), record.offset()
        place = self._places.setdefault(place, place)  # there may be hundreds of thousands: they share equal keys
        identity, message = _identity_and_message(record)
        if identity is not None:
            if identity in self._identities:
                return
            self._identities.add(identity)
        id_ = self._names.letter_id(place[1], offset)
        if id_ in self.by_id:  # read before an error cut the reading short
            return
        entry = self.by_id[id_] = LetterState(id_, place, offset, len(self.order), message or f"{place[0]}/{place[1]}/{offset}")
        self.order.append(entry)
        for change in self._early.pop(entry.id, ()):
            self._apply(entry, change)

    def _note(self, record: Record) -> None:
        try:
            change = _decoder.decode(record.value() or b"")
        except UNREADABLE:
            return
        for each in change.each() if isinstance(change, Claims | Outcomes) else (change,):
            entry = self.by_id.get(each.letter)
            if entry is None:
                self._early.setdefault(each.letter, []).append(each)
            else:
                self._apply(entry, each)

    def _apply(self, entry: LetterState, change: Claim | Outcome | Withdrawal) -> None:
        match change:
            case Claim() if entry.claim is None and entry.state == change.was:
                entry.claim = change
            case Outcome() if entry.claim is not None and entry.claim.nonce == change.nonce:
                entry.state, entry.claim, entry.settled_by = change.state, None, change.nonce
            case Withdrawal() if entry.claim is not None and entry.claim.nonce == change.nonce:
                entry.claim = None

    def between(self, after: str, until: str) -> Iterator[LetterState]:
        """Letters after the one and up to the other, in the order in which they came."""
        first = self.by_id[after].at + 1 if after in self.by_id else 0
        last = self.by_id[until].at + 1 if until in self.by_id else len(self.order)
        return itertools.islice(self.order, first, last)

    def write(self, change: Sequence[Claim | Outcome | Withdrawal], what: str) -> None:
        entries = [NewRecord(self._names.states, msgspec.json.encode(each), _key(each), (), 0) for each in _log_entries(change)]
        self._connection.must_store(entries, what)


def _log_entries(change: Sequence[Claim | Outcome | Withdrawal]) -> Iterator[LogEntry]:
    """Entries of the log: one for many where they differ in nothing but the letter."""
    alike: dict[Any, list[str]] = {}
    for each in change:
        match each:
            case Claim() if (shared := _shared(each)) is not None:
                key = (Claims, each.was, each.state, each.operator, shared, each.retry, each.partition, each.end)
                alike.setdefault(key, []).append(each.letter)
            case Outcome() if (shared := _shared(each)) is not None:
                alike.setdefault((Outcomes, each.state, shared), []).append(each.letter)
            case _:
                yield each
    for (kind, *values), letters in alike.items():
        for first in range(0, len(letters), LETTERS_PER_ENTRY):
            yield kind(letters[first : first + LETTERS_PER_ENTRY], *values)


def _shared(change: Claim | Outcome) -> str | None:
    ending = nonce_of("", change.letter)
    return change.nonce.removesuffix(ending) if change.nonce.endswith(ending) else None


def _identity_and_message(record: Record) -> tuple[bytes | str | None, str | None]:
    """The identity of a letter, and the id of its message; without an id, the place of the message."""
    found = dict(headers_of(record))
    id_ = found.get(ID)
    message = text(id_) if id_ else text(found.get(STAMP)).partition("@")[0]
    return found.get(LETTER_ID) or None, message or None


def _key(change: LogEntry) -> bytes:
    """A key of its own for each entry: Kafka deletes all but the latest entry of a key, and all are needed."""
    first = f" {change.letters[0]}" if isinstance(change, Claims | Outcomes) else ""
    return f"{type(change).__name__.lower()} {change.nonce}{first}".encode()
