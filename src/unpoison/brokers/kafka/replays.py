"""Does a copy count by which an operator sends a letter again?

An operator may be frozen between its claim and its copy, or a server keep the copy for a while; then it is taken for dead, and
somebody else finishes what it began. So that its copy cannot come later and be a second one, whoever finishes a claim writes
a stop into the partition where the copy belongs. The order of that log decides: of the copy and the stop of one claim the
first one counts, for those who consume as for those who work on letters.
"""

from collections.abc import Iterable, Sequence

import msgspec

from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.envelope import NewRecord, Record, header, is_number
from unpoison.brokers.kafka.partition import Partition
from unpoison.brokers.kafka.reading import Reader
from unpoison.errors import BrokerUnavailable

CLAIM, CANCELLED = "x-unpoison-claim", "x-unpoison-stop"
"""On a copy: its claim, and where the partition ended before that. On a stop: the claim."""


def with_claim(copy: NewRecord, nonce: str, end: int) -> NewRecord:
    """The copy, with its claim."""
    return msgspec.structs.replace(copy, headers=[*copy.headers, (CLAIM, f"{nonce}/{end}".encode())])


def cancellation(place: PartitionKey, nonce: str) -> NewRecord:
    return NewRecord(place[0], None, None, [(CANCELLED, nonce.encode())], place[1])


def valid_claims(records: Iterable[Record]) -> set[str]:
    """The claims whose copy stands before any stop."""
    copies: set[str] = set()
    stopped: set[str] = set()
    for record in records:
        nonce, _ = _claim(record)
        if nonce and nonce not in stopped:
            copies.add(nonce)
        elif told := header(record, CANCELLED):
            stopped.add(told)
    return copies


def claim_of(record: Record) -> str:
    """The claim by which a copy was sent; empty if it is none."""
    return _claim(record)[0]


def _claim(record: Record) -> tuple[str, int]:
    nonce, _, end = (header(record, CLAIM) or "").rpartition("/")
    return (nonce, int(end)) if is_number(end) else ("", 0)  # else somebody else's header of that name


class Cancellations:
    """The stops that one consumer of the retry topic knows of. Those that the last owner of a partition read are looked for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reader: Reader | None = None
        self._at: dict[str, int] = {}
        self.doubtful: dict[tuple[Partition, int], Record] = {}
        """Copies of which it is not known yet whether they were stopped before this consumer came."""

    def drop_cancelled(self, partition: Partition, records: Sequence[Record]) -> list[Record]:
        """Those that count. Stops and what they stop are done; what is in doubt rests."""
        found: list[Record] = []
        for record in records:
            offset, (nonce, end), told = record.offset(), _claim(record), header(record, CANCELLED)
            if told:  # an empty one is somebody else's header of that name
                self._at.setdefault(told, offset)
            if told or self._is_stopped(record):
                partition.rest(record)
                partition.finish(offset)
            elif nonce and end < min(offset, partition.known_top):
                partition.rest(record)
                self.doubtful[partition, offset] = record
            else:
                found.append(record)
        return found

    def look(self) -> bool:
        """Read what was stopped before this consumer came. False on trouble: then it is to be asked again."""
        stretches: dict[PartitionKey, tuple[int, int]] = {}
        for (partition, _), record in self.doubtful.items():
            if not partition.is_lost:
                place, end = (partition.topic, partition.number), _claim(record)[1]
                stretches[place] = (min(end, stretches.get(place, (end, 0))[0]), partition.known_top)
        self._reader = self._reader or Reader(self._connection)
        try:
            begins, ends = self._connection.queries.ends(stretches, first=True), self._connection.queries.ends(stretches)
            there = {each: (max(start, begins[each]), min(end, ends[each])) for each, (start, end) in stretches.items()}
            for record in self._reader.read(there):
                if told := header(record, CANCELLED):
                    self._at[told] = min(record.offset(), self._at.get(told, record.offset()))
        except BrokerUnavailable:
            return False
        return True

    def cleared(self) -> list[tuple[Partition, int]]:
        """Those that were in doubt and count, after a look."""
        found = []
        for (partition, offset), record in self.doubtful.items():
            if self._is_stopped(record):
                partition.finish(offset)
            elif not partition.is_lost:
                found.append((partition, offset))
        self.doubtful = {}
        return found

    def _is_stopped(self, record: Record) -> bool:
        nonce = _claim(record)[0]
        return bool(nonce) and self._at.get(nonce, record.offset()) < record.offset()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
