"""How is a dead letter kept so that every tool can read it, and how is it known what became of it?

A letter is a record with the key, body and headers of its message. What is known about the failure is JSON in the header
`x-unpoison-letter`, with the gist in headers of its own. Letters of other systems are read too (foreign.py).

A log cannot delete a record from its middle. So letters stay where they are, and what became of them is written into another log,
`<topic>.dlq.states`. It has one partition: its order decides between two operators. There are three kinds of entries:

    claim    an operator is about to change letters. For each letter the first claim in the log wins.
    state    the letters were replayed, discarded, purged or collected into a store. It counts for those whose claim, which it
             names, has won.
    drop     the operator is gone, and had not changed them: its claim is withdrawn, and the letters wait as before.

Letters that change alike share an entry: there may be a hundred thousand of them. Each letter is listed once, even if a crash
left it twice in the DLQ.
"""

import hashlib
import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from unpoison.brokers.kafka import envelope, foreign
from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.connection import Connection, Reader
from unpoison.brokers.kafka.envelope import BODY_AT, ID, OURS, Envelope, NewRecord, Record, header, headers_of, is_number, text
from unpoison.brokers.kafka.names import Names
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message
from unpoison.port.serialization import GROUP, LETTER, LETTER_ID, STAMP, UNREADABLE, letter_headers, letter_of

WHOLE, TRIMMED, REFERRING = 0, 1, 2
"""How much of a letter is written: all; less about the failure; and, at last, only where its body is."""
MAX_ABOUT_FAILURE = (64 * 1024, 2_000, 2_000)
"""Bytes about the failure, for each of these."""

DEAD, PURGED, COLLECTED = "dead", "purged", "collected"
GONE = (PURGED, COLLECTED)
"""States of letters that are no longer here, although their records are: a collected one is in a store."""
LETTERS_PER_ENTRY = 500
"""How many letters share an entry of the log."""


def letter_record(names: Names, letter: DeadLetter, record: Record, how: int = WHOLE) -> NewRecord:
    seen = envelope.read_envelope_safely(record, names.topic)
    original = {**envelope.original_position(seen.stamp), "group": names.group_name, **letter.original}
    letter = msgspec.structs.replace(letter, original=original)
    extra: dict[str, Any] = {
        LETTER_ID: letter_identity(names.group_name, seen, letter.replays),
        GROUP: names.group_name,
        **letter_headers(letter, MAX_ABOUT_FAILURE[how]),
    }
    if how == REFERRING:
        extra[BODY_AT] = f"{record.topic()}/{record.partition()}/{record.offset()}"
    headers = envelope.copy_headers(record, seen, Counters(attempts=letter.attempts, replays=letter.replays), extra)
    if how == REFERRING:
        headers = [(name, value) for name, value in headers if name.startswith(OURS)]
    return NewRecord(names.dlq, None if how == REFERRING else record.value(), record.key(), headers)


def letter_identity(group: str, seen: Envelope, replays: int) -> str:
    """Equal for two letters of one message: a crash after the first one was stored, and before its message was done."""
    text = f"{group}\0{seen.stamp}\0{replays}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def read_letter(source: str, id_: str, state: str, record: Record, original: Record | None) -> DeadLetter:
    """A letter. `original` has the body and the sender's headers: the letter itself, or the record that it refers to; None if
    that was deleted."""
    seen = envelope.read_envelope_safely(record)
    sent = seen.headers if original is None else envelope.read_envelope_safely(original).headers
    body = b"" if original is None else original.value() or b""
    message = Message(seen.id, source, body, seen.key, sent, original is not None and original.value() is None)
    return letter_of(
        header(record, LETTER), message, lambda: foreign.letter(message, record, seen.counters), id_=id_, state=state
    )


def body_position(record: Record) -> tuple[tuple[str, int], int] | None:
    """Topic and partition, and offset, of the message that a letter refers to; None if it has its body itself."""
    topic, _, rest = (header(record, BODY_AT) or "").partition("/")
    partition, _, offset = rest.partition("/")
    if record.value() is not None or not (is_number(partition) and is_number(offset)):
        return None
    return (topic, int(partition)), int(offset)


class Claim(msgspec.Struct, frozen=True, tag="claim", tag_field="kind"):
    was: str
    state: str
    operator: str
    nonce: str
    retry: str = ""
    partition: int = 0
    end: int = 0
    """Of a replay: where its copies belong, and where that partition ended before. A copy that was sent has a higher offset."""
    is_topic_of_others: bool = False
    """Whether they belong into a topic that others read too: nothing but messages may be written there, so no cancellation."""
    letters: tuple[str, ...] = ()

    @property
    def place(self) -> PartitionKey:
        return self.retry, self.partition

    def of(self, letter: str) -> str:
        """The claim to one of these letters, as its copy names it."""
        return f"{self.nonce}.{letter}"


class Outcome(msgspec.Struct, frozen=True, tag="state", tag_field="kind"):
    state: str
    nonce: str
    letters: tuple[str, ...] = ()


class Withdrawal(msgspec.Struct, frozen=True, tag="drop", tag_field="kind"):
    nonce: str
    letters: tuple[str, ...] = ()


Change = Claim | Outcome | Withdrawal
_decoder = msgspec.json.Decoder(Change)


class LetterState(msgspec.Struct, gc=False):
    """One letter: where it stands, and what became of it."""

    id: str
    place: PartitionKey
    offset: int
    at: int
    """Which of all letters it is, in the order in which they came."""
    message: str
    """The id of its message."""
    size: int
    """Bytes of its body; 0 if it refers to that."""
    state: str = DEAD
    claim: Claim | None = None
    settled_by: str = ""


class LetterStates:
    def __init__(self, connection: Connection, names: Names, reader: Reader, partitions: int, *, has_states: bool = True) -> None:
        """`partitions` are those of the DLQ. Where either topic is missing there is nothing to read of it."""
        self._connection, self._names, self._reader = connection, names, reader
        self._states: PartitionKey = (names.states, 0)
        self._logs = [(names.dlq, number) for number in range(partitions)] + [self._states] * has_states
        self._clear()

    def _clear(self) -> None:
        """Forget all that was read."""
        self._read: dict[PartitionKey, int] = dict.fromkeys(self._logs, 0)
        self._early: dict[str, list[Change]] = {}
        self._identities: set[bytes | str] = set()
        self.by_id: dict[str, LetterState] = {}
        self.order: list[LetterState] = []
        self._places: dict[PartitionKey, PartitionKey] = {}

    def refresh(self) -> None:
        """Read what was written since the last time."""
        bounds = self._connection.queries.bounds(self._logs)
        if any(end < self._read[place] for place, (_, end) in bounds.items()):
            self._clear()  # a topic was deleted and created again
        letters = {place: (max(begin, self._read[place]), end) for place, (begin, end) in bounds.items()}
        states = letters.pop(self._states, None)
        records: Iterable[Record] = self._reader.read(letters)
        if len(letters) > 1:  # or letters would be in the order of partitions and not of time
            records = sorted(records, key=lambda each: (each.timestamp()[1], each.partition(), each.offset()))
        for record in records:
            self._add(record)
        self._read |= {place: end for place, (_, end) in letters.items()}
        if states is not None:
            for record in self._reader.read({self._states: states}):
                self._note(record)
                self._read[self._states] = record.offset() + 1
            self._read[self._states] = states[1]

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
        message = message or f"{place[0]}/{place[1]}/{offset}"
        entry = LetterState(id_, place, offset, len(self.order), message, len(record.value() or b""))
        self.by_id[id_] = entry
        self.order.append(entry)
        for change in self._early.pop(entry.id, ()):
            self._apply(entry, change)

    def _note(self, record: Record) -> None:
        try:
            change = _decoder.decode(record.value() or b"")
        except UNREADABLE:
            return
        for letter in change.letters:
            if letter in self.by_id:
                self._apply(self.by_id[letter], change)
            else:
                self._early.setdefault(letter, []).append(change)

    def _apply(self, entry: LetterState, change: Change) -> None:
        if isinstance(change, Claim):
            if entry.claim is None and entry.state == change.was:
                entry.claim = change
        elif entry.claim is not None and entry.claim.nonce == change.nonce:
            entry.claim = None
            if isinstance(change, Outcome):
                entry.state, entry.settled_by = change.state, change.nonce

    def is_claimed(self, letter: str, claim: Claim) -> bool:
        """Whether this claim to a letter has won, and nothing has come of it yet."""
        entry = self.by_id.get(letter)
        return entry is not None and entry.claim is not None and entry.claim.nonce == claim.nonce

    @property
    def dead(self) -> int:
        """How many letters wait for an operator."""
        return sum(letter.state == DEAD for letter in self.order)

    def between(self, after: str, until: str) -> Iterator[LetterState]:
        """Letters after the one and up to the other, in the order in which they came."""
        first = self.by_id[after].at + 1 if after in self.by_id else 0
        last = self.by_id[until].at + 1 if until in self.by_id else len(self.order)
        return itertools.islice(self.order, first, last)

    def write(self, changes: Mapping[str, Change], what: str) -> None:
        """Change letters, by their ids."""
        alike: dict[Change, list[str]] = {}
        for letter, change in changes.items():
            alike.setdefault(change, []).append(letter)
        entries = [
            msgspec.structs.replace(change, letters=tuple(letters[first : first + LETTERS_PER_ENTRY]))
            for change, letters in alike.items()
            for first in range(0, len(letters), LETTERS_PER_ENTRY)
        ]
        topic = self._names.states
        self._connection.must_store([NewRecord(topic, msgspec.json.encode(each), _key(each), (), 0) for each in entries], what)


def _identity_and_message(record: Record) -> tuple[bytes | str | None, str | None]:
    """The identity of a letter, and the id of its message; without an id, the place of the message."""
    found = dict(headers_of(record))
    id_ = found.get(ID)
    message = text(id_) if id_ else text(found.get(STAMP)).partition("@")[0]
    return found.get(LETTER_ID) or None, message or None


def _key(change: Change) -> bytes:
    """A key of its own for each entry: Kafka deletes all but the latest entry of a key, and all are needed."""
    return f"{type(change).__name__.lower()} {change.nonce} {uuid.uuid4().hex}".encode()
