"""What can be done with the dead letters of a source?

An operator claims a letter before changing it, in the log that letters.py explains; the first claim wins. A replay is a copy in
the retry topic of the letter's group. If an operator is killed between its claim and the outcome, the next one cancels
the copy, looks whether it had been sent before that, and writes the outcome or withdraws the claim (envelope.py).

A letter of another system goes to the topic that it came from (foreign.py). Others read that topic, so nothing is cancelled
there: a copy that the server stores only after the next operator has looked for it comes twice.
"""

import itertools
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from confluent_kafka import Consumer

from unpoison.brokers.kafka import envelope, foreign, letters, resending
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.envelope import NewRecord, Record
from unpoison.brokers.kafka.errors import refused_and_unknown
from unpoison.brokers.kafka.letters import (
    COLLECTED,
    DEAD,
    GONE,
    PURGED,
    Change,
    Claim,
    LetterState,
    LetterStates,
    Outcome,
    Withdrawal,
)
from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import STORED, WHOLE_BYTES, Published, Refused
from unpoison.port.reading import first_within

REPLAYED = "replayed"
NOTHING = "nothing"
"""The end of a DLQ without letters."""
WAIT = 0.05
JOINED_WITHIN = 15.0
SPARSE = 20
"""Letters that are farther apart are read one by one."""
MAX_BYTES = 32 * 1024 * 1024
"""Of the bodies of letters that are sent together."""


class KafkaDeadLetters:
    page = 5_000

    def __init__(self, broker: KafkaBroker, source: str) -> None:
        self.broker, self._source = broker, source
        self._connection, self._queries = broker.connection, broker.connection.queries
        self._operator: Consumer | None = None
        self._name = f"{broker.connection.name}-{uuid.uuid4().hex[:6]}"

    def count(self, state: str = DEAD) -> int:
        return sum(known == state for _, known in self._with_states(self._fresh().order))

    def freeze(self) -> str:
        order = self._fresh().order
        return order[-1].id if order else NOTHING

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = DEAD
    ) -> Sequence[DeadLetter]:
        found = self._only(only, state) if only is not None else self._page(after, until, limit, state)
        records = {entry.id: record for entry, record in self._read([entry for entry, _ in found])}
        there = [(entry.id, known, records[entry.id]) for entry, known in found if entry.id in records]
        return [letters.read_letter(self._source, *each, original_of(self.broker, each[2])) for each in there]

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = DEAD) -> Sequence[str]:
        return [entry.id for entry, _ in self._page(after, until, limit, state)]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        return self._change(letter_ids, DEAD, REPLAYED)

    def remove(self, letter_ids: Sequence[str], *, state: str = DEAD, keep_as: str | None = None) -> Sequence[str]:
        return self._change(letter_ids, state, keep_as or PURGED)

    def collected(self, letter_ids: Sequence[str]) -> None:
        """A record stays where it is: the log of states says that its letter is elsewhere."""
        self._change(letter_ids, DEAD, COLLECTED)

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        found: list[WholeLetter] = []
        # Kafka may have deleted all of some page, and not yet what is behind it.
        while not found and (entries := [entry for entry, _ in self._page(after, "", limit, DEAD)]):
            entries = entries[: first_within((entry.size for entry in entries), max(1, most_bytes))]
            found, after = self._whole(entries, most_bytes), entries[-1].id
        return found

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        if not letters:
            return STORED
        names, topics = self._connection.names(self._source), self._queries.topics()
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        made = [resending.sent_back(names, each, lambda topic: counts.get(topic, 0)) for each in letters]
        refused = {number: each for number, each in enumerate(made) if isinstance(each, Refused)}
        return store_copies(
            self._connection, {number: each for number, each in enumerate(made) if isinstance(each, NewRecord)}, refused
        )

    # Looking.

    def _fresh(self) -> LetterStates:
        return self.broker.letter_states(self._source)

    def _page(self, after: str, until: str, limit: int, state: str | None) -> list[tuple[LetterState, str]]:
        """Letters, each with its state."""
        states = self._fresh()
        return [] if until == NOTHING else self._in_state(states.between(after, until), limit, state)

    def _only(self, id_: str, state: str | None) -> list[tuple[LetterState, str]]:
        states = self._fresh()
        entries = [states.by_id[id_]] if id_ in states.by_id else [each for each in states.order if each.message == id_]
        return self._in_state(entries, len(entries), state)

    def _in_state(self, entries: Iterable[LetterState], limit: int, state: str | None) -> list[tuple[LetterState, str]]:
        """Those in this state, or all that are here, each with its state."""
        found = (each for each in self._with_states(entries) if each[1] == state or (state is None and each[1] not in GONE))
        return list(itertools.islice(found, limit))

    def _with_states(self, entries: Iterable[LetterState]) -> Iterator[tuple[LetterState, str]]:
        """A letter whose copy was sent is replayed, even if its operator has not written the outcome."""
        entries = list(entries)
        sent = self._sent({each.id: each.claim for each in entries if each.claim is not None and each.claim.state == REPLAYED})
        return ((entry, REPLAYED if entry.id in sent else entry.state) for entry in entries)

    def _read(self, entries: Sequence[LetterState]) -> Iterator[tuple[LetterState, Record]]:
        by_place: dict[PartitionKey, dict[int, LetterState]] = {}
        for entry in entries:
            by_place.setdefault(entry.place, {})[entry.offset] = entry
        for place, there in by_place.items():
            for start, end in _stretches(sorted(there)):
                for record in self.broker.reader.read({place: (start, end)}):
                    if record.offset() in there:
                        yield there[record.offset()], record

    def _whole(self, entries: Sequence[LetterState], most_bytes: int) -> list[WholeLetter]:
        """Bodies that are elsewhere are read one by one: how large they are is not known before."""
        records = {entry.id: record for entry, record in self._read(entries)}
        found: list[WholeLetter] = []
        for entry in entries:
            if entry.id not in records:
                continue  # Kafka has deleted it meanwhile
            record = records[entry.id]
            original = original_of(self.broker, record)
            found.append(resending.whole_letter(self._source, entry.id, record, original))
            most_bytes -= max(1, len(original.value() or b"") if original is not None else 0)
            if most_bytes <= 0:
                break
        return found

    # Changing.

    def _change(self, letter_ids: Sequence[str], was: str, state: str) -> Sequence[str]:
        """Bring letters that are still in the state `was` into another, unless another operator is changing them."""
        states = self._without_claims(letter_ids)
        wanted = [id_ for id_ in dict.fromkeys(letter_ids) if id_ in states.by_id and states.by_id[id_].state == was]
        changed: list[str] = []
        while wanted:
            self._join()
            copies: dict[str, NewRecord] = {}
            batch, wanted = wanted, []
            if state == REPLAYED:
                copies, wanted = self._copies(states, batch)
                batch = list(copies)  # the DLQ may just have been cut
            changed += self._change_batch(states, batch, was, state, copies)
        return changed

    def _change_batch(
        self, states: LetterStates, wanted: Sequence[str], was: str, state: str, copies: Mapping[str, NewRecord]
    ) -> Sequence[str]:
        claims = self._claim(states, wanted, was, state, copies)
        states = self._fresh()
        won = {id_: claim for id_, claim in claims.items() if states.is_claimed(id_, claim)}
        try:
            done = self._send(won, copies) if state == REPLAYED else won.keys()
        except BrokerUnavailable:
            self._finish(states, won)
            raise
        states.write({id_: Outcome(state, won[id_].nonce) for id_ in done}, "writing what became of letters")
        states = self._fresh()
        return [id_ for id_ in won if id_ in done and states.by_id[id_].settled_by == won[id_].nonce]

    def _copies(self, states: LetterStates, letter_ids: Sequence[str]) -> tuple[dict[str, NewRecord], list[str]]:
        """Copies of as many of these letters as fit into memory, and the ids of the others."""
        entries = sorted((states.by_id[id_] for id_ in letter_ids), key=lambda entry: (entry.place, entry.offset))
        fit = first_within((entry.size for entry in entries), MAX_BYTES)
        names, count = self._connection.names(self._source), self.broker.topology.partitions
        found = list(self._read(entries[:fit]))  # the reader reads nothing else meanwhile
        copies = {
            each.id: resending.replayed(names, each.id, record, original_of(self.broker, record), count) for each, record in found
        }
        return copies, [entry.id for entry in entries[fit:]]

    def _claim(
        self, states: LetterStates, wanted: Sequence[str], was: str, state: str, copies: Mapping[str, NewRecord]
    ) -> dict[str, Claim]:
        ends = self._queries.ends({(copy.topic, copy.partition) for copy in copies.values()})
        claims, nonce, names = {}, uuid.uuid4().hex, self._connection.names(self._source)
        for id_ in wanted:
            copy = copies.get(id_)
            claims[id_] = Claim(was, state, self._name, nonce)
            if copy:
                place, end = (copy.topic, copy.partition), ends[copy.topic, copy.partition]
                claims[id_] = Claim(was, state, self._name, nonce, *place, end, not foreign.is_internal(names, copy.topic))
        states.write(claims, "claiming letters")
        return claims

    def _send(self, claims: Mapping[str, Claim], copies: Mapping[str, NewRecord]) -> Collection[str]:
        """Send the claimed letters again. Returns those whose copy counts."""
        marked = [envelope.with_claim(copies[id_], claim.of(id_), claim.end) for id_, claim in claims.items()]
        self._connection.must_store(marked, "sending letters again")
        ours = Counter(claim.place for claim in claims.values())
        ends = self._queries.ends(ours)
        if all(ends[claim.place] - claim.end == ours[claim.place] for claim in claims.values()):
            return claims.keys()  # no other client has written there since
        return self._sent(claims)

    def _without_claims(self, letter_ids: Sequence[str]) -> LetterStates:
        """Wait for operators that are changing these letters, and finish the claims of those that are gone."""
        states = self._fresh()
        deadline = time.monotonic() + self._connection.address.session_timeout + 10
        while claimed := {id_: entry.claim for id_ in letter_ids if (entry := states.by_id.get(id_)) and entry.claim}:
            gone = {operator for operator in {claim.operator for claim in claimed.values()} if not self._is_alive(operator)}
            if gone:
                states = self._fresh()  # an operator may have written the outcome just before it went
                left = {id_: claim for id_, claim in claimed.items() if claim.operator in gone and states.is_claimed(id_, claim)}
                self._finish(states, left)
            elif time.monotonic() > deadline:
                break
            else:
                time.sleep(WAIT)
            states = self._fresh()
        return states

    def _finish(self, states: LetterStates, claims: Mapping[str, Claim]) -> None:
        """Write the outcome of claims whose operator will not, after cancelling their copies."""
        replays = [(id_, claim) for id_, claim in claims.items() if claim.retry and not claim.is_topic_of_others]
        cancellations = [envelope.cancellation(*claim.place, claim.of(id_)) for id_, claim in replays]
        self._connection.must_store(cancellations, "cancelling interrupted replays")
        sent = self._sent(claims)
        changes: dict[str, Change] = {
            id_: Outcome(REPLAYED, claim.nonce) if id_ in sent else Withdrawal(claim.nonce) for id_, claim in claims.items()
        }
        states.write(changes, "finishing interrupted changes")

    def _sent(self, claims: Mapping[str, Claim]) -> set[str]:
        """The claimed letters whose copy is in a retry topic, and counts."""
        starts: dict[PartitionKey, int] = {}
        for claim in claims.values():
            if claim.retry:
                starts[claim.place] = min(claim.end, starts.get(claim.place, claim.end))
        ends = self._queries.ends(starts)
        valid = envelope.valid_claims(self.broker.reader.read({place: (start, ends[place]) for place, start in starts.items()}))
        return {id_ for id_, claim in claims.items() if claim.of(id_) in valid}

    def _group(self, operator: str) -> str:
        return f"{self._connection.names(self._source).operators}.{operator}"

    def _is_alive(self, operator: str) -> bool:
        """Each operator is the only member of a group of its own, for as long as it lives."""
        return operator != self._name and bool(self._queries.members(self._group(operator)))

    def _join(self) -> None:
        group = self._group(self._name)
        if self._operator is not None and self._queries.members(group):
            return
        self._operator = self.broker.member(group, self._connection.names(self._source).states)
        deadline = time.monotonic() + JOINED_WITHIN
        while not self._operator.assignment():  # until then it cannot be closed: the client would wait for ever
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"No letter of {self._source!r} was changed: Kafka has not let this operator join its group "
                    f"within {JOINED_WITHIN:g} s."
                )
            self._operator.poll(0.01)


def _stretches(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges that hold these offsets, and few others."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and offset - found[-1][1] < SPARSE:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def original_of(broker: KafkaBroker, record: Record) -> Record | None:
    """The record with the body: the letter itself, or the message that it refers to; None if that was deleted."""
    where = letters.body_position(record)
    if where is None:
        return record
    place, first = where
    if broker.topology.partitions(place[0]) <= place[1]:
        return None
    begin, end = broker.connection.queries.bounds([place])[place]
    found = list(broker.reader.read({place: (first, first + 1)})) if begin <= first < end else []
    stamp = envelope.read_envelope_safely(record).stamp
    # A topic that was created again has another message there.
    return next((each for each in found if envelope.read_envelope_safely(each).stamp == stamp), None)


def store_copies(connection: Connection, copies: Mapping[int, NewRecord], refused: dict[int, Refused]) -> Published:
    """What became of these, and of those that were refused before. If nothing of a portion arrives, the others are not tried:
    each would wait as long."""
    unknown, left = dict[int, str](), list(copies)
    while left:
        fit = first_within((len(copies[number].value or b"") for number in left), MAX_BYTES)
        portion, left = left[:fit], left[fit:]
        failed = connection.store([copies[number] for number in portion])
        certain, doubtful = refused_and_unknown({portion[index]: error for index, error in failed.items()})
        refused, unknown = refused | certain, unknown | doubtful
        if doubtful and len(failed) == len(portion):
            why = f"It was not sent, since Kafka had confirmed none of those before it. {next(iter(doubtful.values()))}"
            refused, left = refused | dict.fromkeys(left, Refused(Refusal.NOT_SENT, why)), []
    return Published(refused, unknown)
