"""Which dead letters are there, and what became of each?

A log cannot delete a record from its middle. So letters stay where they are, and what became of them is written into a log of
its own, `<topic>.dlq.states`, which has one partition: its order decides between two operators. Three kinds of entries:

    claim    an operator is about to do this with a letter. The first one in the log has it.
    state    it is done: replayed, discarded or purged. It counts while the claim that it names has the letter.
    drop     the operator is no more, and had not done it: the letter waits as before.

Each letter is in the books once, even if a crash left it twice in the DLQ.
"""

from collections.abc import Iterable, Sequence

import msgspec

from unpoison.brokers.kafka.asking import Place
from unpoison.brokers.kafka.envelope import Copy, field
from unpoison.brokers.kafka.letters import IDENTITY
from unpoison.brokers.kafka.names import Names
from unpoison.brokers.kafka.reading import Reader
from unpoison.brokers.kafka.record import Record
from unpoison.brokers.kafka.session import Session
from unpoison.stored import UNREADABLE

DEAD, PURGED = "dead", "purged"


class Claim(msgspec.Struct, frozen=True, tag="claim", tag_field="kind"):
    letter: str
    was: str
    state: str
    operator: str
    nonce: str
    retry: str = ""
    partition: int = 0
    end: int = 0
    """Of a replay: where its copy belongs, and where that partition ended before. A copy that was sent stands behind that."""

    @property
    def place(self) -> Place:
        return self.retry, self.partition


class Settled(msgspec.Struct, frozen=True, tag="state", tag_field="kind"):
    letter: str
    state: str
    nonce: str


class Drop(msgspec.Struct, frozen=True, tag="drop", tag_field="kind"):
    letter: str
    nonce: str


_entry = msgspec.json.Decoder(Claim | Settled | Drop)


class Entry(msgspec.Struct):
    """One letter: where it stands, and what became of it."""

    id: str
    place: Place
    offset: int
    state: str = DEAD
    claim: Claim | None = None
    settled_by: str = ""


class Books:
    def __init__(self, session: Session, names: Names, reader: Reader, partitions: int) -> None:
        self._session, self._names, self._reader = session, names, reader
        self._read: dict[Place, int] = {(names.dlq, number): 0 for number in range(partitions)}
        self._states: Place = (names.states, 0)
        self._states_read = 0
        self._early: dict[str, list[Claim | Settled | Drop]] = {}
        self._identities: set[str] = set()
        self.entries: dict[str, Entry] = {}

    def refresh(self) -> None:
        """Read what is new."""
        places = [*self._read, self._states]
        ends, begins = self._session.ends(places), self._session.ends(places, first=True)
        letters = {place: (max(start, begins[place]), ends[place]) for place, start in self._read.items()}
        records: Iterable[Record] = self._reader.read(letters)
        if len(letters) > 1:  # or letters would be told by partition and not by time
            records = sorted(records, key=lambda each: (each.timestamp()[1], each.partition(), each.offset()))
        for record in records:
            self._add(record)
        self._read = {place: end for place, (_, end) in letters.items()}
        stretch = (max(self._states_read, begins[self._states]), ends[self._states])
        for record in self._reader.read({self._states: stretch}):
            self._note(record)
            self._states_read = record.offset() + 1
        self._states_read = stretch[1]

    def _add(self, record: Record) -> None:
        place, offset = (record.topic(), record.partition()), record.offset()
        identity = field(record, IDENTITY)
        if identity is not None and identity in self._identities:
            return
        if identity is not None:
            self._identities.add(identity)
        partition = f"{place[1]}." if place[1] else ""
        entry = Entry(f"{self._names.source}-{partition}{offset}", place, offset)
        if entry.id in self.entries:  # read before, and then the rest could not be read
            return
        self.entries[entry.id] = entry
        for told in self._early.pop(entry.id, ()):
            self._apply(entry, told)

    def _note(self, record: Record) -> None:
        try:
            told = _entry.decode(record.value() or b"")
        except UNREADABLE:
            return
        entry = self.entries.get(told.letter)
        if entry is None:
            self._early.setdefault(told.letter, []).append(told)
        else:
            self._apply(entry, told)

    def _apply(self, entry: Entry, told: Claim | Settled | Drop) -> None:
        match told:
            case Claim() if entry.claim is None and entry.state == told.was:
                entry.claim = told
            case Settled() if entry.claim is not None and entry.claim.nonce == told.nonce:
                entry.state, entry.claim, entry.settled_by = told.state, None, told.nonce
            case Drop() if entry.claim is not None and entry.claim.nonce == told.nonce:
                entry.claim = None

    def write(self, told: Sequence[Claim | Settled | Drop], what: str) -> None:
        self._session.must_store([Copy(self._names.states, msgspec.json.encode(each), _key(each), (), 0) for each in told], what)


def _key(told: Claim | Settled | Drop) -> bytes:
    """Kafka keeps the latest entry of each key, so each has its own: what an entry means depends on those before it."""
    return f"{type(told).__name__.lower()} {told.nonce}".encode()
