"""Does a copy count by which an operator sends a letter again?

An operator may be paused between its claim and its copy, or a server may delay the copy. Then the operator is taken for dead, and
another one finishes the claim. So that the copy cannot come later and be a second one, that operator first writes a cancellation
into the partition where the copy belongs. The order of the log decides, for consumers and operators alike: of the copy and the
cancellation of one claim, the first one counts.
"""

from collections.abc import Iterable, Sequence

import msgspec

from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.connection import Connection, Reader
from unpoison.brokers.kafka.envelope import NewRecord, Record, header, is_number
from unpoison.brokers.kafka.partition import Partition
from unpoison.errors import BrokerUnavailable

CLAIM, CANCELLED = "x-unpoison-claim", "x-unpoison-stop"
"""On a copy: its claim, and where the partition ended before that. On a cancellation: the claim."""


def with_claim(copy: NewRecord, nonce: str, end: int) -> NewRecord:
    """The copy, with its claim."""
    return msgspec.structs.replace(copy, headers=[*copy.headers, (CLAIM, f"{nonce}/{end}".encode())])


def cancellation(place: PartitionKey, nonce: str) -> NewRecord:
    return NewRecord(place[0], None, None, [(CANCELLED, nonce.encode())], place[1])


def valid_claims(records: Iterable[Record]) -> set[str]:
    """The claims whose copy comes before any cancellation."""
    copies: set[str] = set()
    cancelled: set[str] = set()
    for record in records:
        nonce, _ = _claim(record)
        if nonce and nonce not in cancelled:
            copies.add(nonce)
        elif of := header(record, CANCELLED):
            cancelled.add(of)
    return copies


def claim_of(record: Record) -> str:
    """The claim by which a copy was sent; empty if it is no such copy."""
    return _claim(record)[0]


def _claim(record: Record) -> tuple[str, int]:
    nonce, _, end = (header(record, CLAIM) or "").rpartition("/")
    return (nonce, int(end)) if is_number(end) else ("", 0)  # else another program's header of that name


class Cancellations:
    """The cancellations that one consumer of the retry topic knows of. It looks for those that the last owner had read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reader: Reader | None = None
        self._at: dict[str, int] = {}
        self.doubtful: dict[tuple[Partition, int], Record] = {}
        """Copies that may have been cancelled before this consumer came."""

    def drop_cancelled(self, partition: Partition, records: Sequence[Record]) -> list[Record]:
        """The records that count. Cancellations and cancelled copies are done; doubtful copies rest."""
        found: list[Record] = []
        for record in records:
            offset, (nonce, end), of = record.offset(), _claim(record), header(record, CANCELLED)
            if of:  # an empty one is another program's header
                self._at.setdefault(of, offset)
            if of or self._is_cancelled(record):
                partition.rest(record)
                partition.finish(offset)
            elif nonce and end < min(offset, partition.known_top):
                partition.rest(record)
                self.doubtful[partition, offset] = record
            else:
                found.append(record)
        return found

    def look(self) -> bool:
        """Read the cancellations that came before this consumer. False if that failed and must be tried again."""
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
                if of := header(record, CANCELLED):
                    self._at[of] = min(record.offset(), self._at.get(of, record.offset()))
        except BrokerUnavailable:
            return False
        return True

    def cleared(self) -> list[tuple[Partition, int]]:
        """After a look: the doubtful copies that count."""
        found = []
        for (partition, offset), record in self.doubtful.items():
            if self._is_cancelled(record):
                partition.finish(offset)
            elif not partition.is_lost:
                found.append((partition, offset))
        self.doubtful = {}
        return found

    def _is_cancelled(self, record: Record) -> bool:
        nonce = _claim(record)[0]
        return bool(nonce) and self._at.get(nonce, record.offset()) < record.offset()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
