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
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from confluent_kafka import Consumer

from unpoison.brokers.kafka import envelope, foreign, letters
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.envelope import BODY_AT, NewRecord, Record
from unpoison.brokers.kafka.letters import DEAD, PURGED, Change, Claim, LetterState, LetterStates, Outcome, Withdrawal
from unpoison.brokers.kafka.names import PARTITIONS, REPLAYS, SUSPECTS
from unpoison.errors import BrokerUnavailable, PayloadError
from unpoison.model.dead_letter import DeadLetter
from unpoison.port.serialization import GROUP

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
        return [letters.read_letter(self._source, *each, self._original(each[2])) for each in there]

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = DEAD) -> Sequence[str]:
        return [entry.id for entry, _ in self._page(after, until, limit, state)]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        return self._change(letter_ids, DEAD, REPLAYED)

    def remove(self, letter_ids: Sequence[str], *, state: str = DEAD, keep_as: str | None = None) -> Sequence[str]:
        return self._change(letter_ids, state, keep_as or PURGED)

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
        """Those in this state, or all that were not purged, each with its state."""
        found = (each for each in self._with_states(entries) if each[1] == state or (state is None and each[1] != PURGED))
        return list(itertools.islice(found, limit))

    def _with_states(self, entries: Iterable[LetterState]) -> Iterator[tuple[LetterState, str]]:
        """A letter whose copy was sent is replayed, even if its operator has not written the outcome."""
        entries = list(entries)
        sent = self._sent({each.id: each.claim for each in entries if each.claim is not None and each.claim.state == REPLAYED})
        return ((entry, REPLAYED if entry.id in sent else entry.state) for entry in entries)

    def _read(self, entries: Sequence[LetterState]) -> Generator[tuple[LetterState, Record]]:
        by_place: dict[PartitionKey, dict[int, LetterState]] = {}
        for entry in entries:
            by_place.setdefault(entry.place, {})[entry.offset] = entry
        for place, there in by_place.items():
            for start, end in _stretches(sorted(there)):
                for record in self.broker.reader.read({place: (start, end)}):
                    if record.offset() in there:
                        yield there[record.offset()], record

    def _original(self, record: Record) -> Record | None:
        """The record with the body: the letter itself, or the message that it refers to; None if that was deleted."""
        where = letters.body_position(record)
        if where is None:
            return record
        place, first = where
        if self.broker.topology.partitions(place[0]) <= place[1]:
            return None
        begin, end = self._queries.bounds([place])[place]
        found = list(self.broker.reader.read({place: (first, first + 1)})) if begin <= first < end else []
        stamp = envelope.read_envelope_safely(record).stamp
        # A topic that was created again has another message there.
        return next((each for each in found if envelope.read_envelope_safely(each).stamp == stamp), None)

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
        found: list[tuple[LetterState, Record]] = []
        size, behind = 0, len(entries)
        with closing(self._read(entries)) as records:
            for entry, record in records:
                found.append((entry, record))
                size += len(record.value() or b"")
                if size > MAX_BYTES:
                    behind = entries.index(entry) + 1
                    break
        return {entry.id: self._again(entry, record) for entry, record in found}, [entry.id for entry in entries[behind:]]

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

    def _again(self, entry: LetterState, record: Record) -> NewRecord:
        """The copy to send: to the group that gave the message up, if its retry topic exists, else to ours. A letter of another
        system goes to the topic that it came from."""
        original = self._original(record)
        if original is None:
            raise PayloadError(
                f"Letter {entry.id!r} cannot be sent, and no letter was: it was too large for the DLQ, and Kafka has deleted the "
                f"message at {envelope.header(record, BODY_AT)} since. To discard it: unpoison dlq discard {entry.id}"
            )
        names = self._connection.names(self._source)
        counters = letters.read_letter(self._source, entry.id, REPLAYED, record, original).replayed()
        if (told := foreign.told(record)) is not None:
            return foreign.sent_back(names, entry.id, record, told, counters, self.broker.topology.partitions)
        gave_up = envelope.header(record, GROUP)
        retry = names.retry_of(gave_up) if gave_up else names.retry
        if self.broker.topology.partitions(retry) < PARTITIONS:
            retry = names.retry
        headers = envelope.copy_headers(original, envelope.read_envelope_safely(record), counters)
        return NewRecord(retry, original.value(), record.key(), headers, SUSPECTS if counters.alone else REPLAYS)

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
