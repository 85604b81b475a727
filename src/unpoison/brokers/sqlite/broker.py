"""A SQLite file as a broker.

`fetch` hands out the next range of a source's line and records it as one lease row, however long the range is. `settle`
deletes a batch of successes with one statement. So a hundred messages cost two short transactions.

Publish, retry and dead letter are synced to the disk before the call returns. Leases and finished messages are not: after a
power cut the latest of them are delivered again, which the contract allows.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from unpoison.brokers.sqlite import errors, rows
from unpoison.brokers.sqlite.bell import Bell
from unpoison.brokers.sqlite.errors import explained
from unpoison.brokers.sqlite.file import connect, path_of, transaction
from unpoison.brokers.sqlite.owner import Leases, Owner, take_over
from unpoison.brokers.sqlite.schema import POSITIONS, migrate
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Delivery, Outgoing
from unpoison.port import sql
from unpoison.port.broker import ALL_CAPABILITIES, Depth, Finding, Published, Ring, Settlement, Waits
from unpoison.port.reading import Unreadable
from unpoison.port.serialization import counters_text
from unpoison.port.takeovers import TAKEOVER_EVERY, ownership_lost

_NOW = "from unpoison_waiting where source = ? and alone = ? and owner is null and due <= ? order by due limit ?"
_ANY_WAITING = f"select 1 {_NOW}"
_TAKE_WAITING = f"select -no, id, body, key, headers, counters {_NOW}"


class _PartlyLost(Exception):
    """Rolls a settle back: another consumer took over some of its messages."""


class SQLiteBroker:
    """One connection to the file. A consumer owns its messages until all its processes have ended; no clock is involved."""

    native = staticmethod(rows.native)
    capabilities = ALL_CAPABILITIES

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path_of(url)
        self._clock = clock
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._durable = False
        self._create = True
        self.numbers = sql.SourceNumbers(self._find_source, self._create_source)
        self._owner = Owner(self.path)
        self._leases = Leases()
        self._flowing: set[int] = set()  # sources whose last fetch got all it asked for
        self._bell: Bell | None = None
        self._looked_for_vanished = float("-inf")

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self._connection, self._create = connect(self.path, create=create), create
        try:
            with explained(self.path):
                migrate(self._connection, self.path, create=create)
            numbers = [self.numbers[source] for source in sources]
            self.numbers.created.clear()
        except BaseException:
            self.close()
            raise
        if ring is not None:
            self._bell = Bell(self.path, numbers, ring, self._notices_vanished, self._clock)
        return ()

    def inherited_fds(self) -> Sequence[int]:
        self._register()
        return self._owner.inherited_fds()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        return sql.publish(messages, self.numbers, self.writing, partial(rows.publish, clock=self._clock), self._publish_failed)

    def _publish_failed(self, messages: Sequence[Outgoing], error: BrokerUnavailable, *, committing: bool) -> Published:
        largest = self._connected().getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
        return errors.failed(messages, error, largest, committing=committing)

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        number = self.numbers[source]
        self._take_over_vanished()
        if limit < 1 or not (number in self._flowing or self._has_ready(number)):
            self._arm()
            return ()
        self._register()
        budget = rows.ByteBudget()
        with self.writing(durable=False) as run:
            self._check_ownership(run)
            # Retries and returned messages go first, but take at most half: a flood of them must not starve new ones.
            deliveries = self._fetch_waiting(run, source, number, max(1, limit // 2), budget)
            first, fresh = self._fetch_line(run, source, number, limit - len(deliveries), budget)
            deliveries += fresh
            if len(deliveries) < limit:
                deliveries += self._fetch_waiting(run, source, number, limit - len(deliveries), budget)
        if fresh:
            self._leases.add(first, len(fresh))
        if len(deliveries) < limit:
            self._flowing.discard(number)
            self._arm()
        else:
            self._flowing.add(number)
        return deliveries

    def has_suspect(self, source: str) -> bool:
        number = self.numbers[source]
        with self.reading() as run:
            return run.execute(_ANY_WAITING, (number, True, self._clock(), 1)).fetchone() is not None

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        number = self.numbers[source]
        self._register()
        with self.writing() as run:
            self._check_ownership(run)
            found = self._fetch_waiting(run, source, number, 1, rows.ByteBudget(), alone=True)
            for suspect in found:
                if isinstance(suspect, Unreadable):
                    continue  # the consumer does not start it
                counters = counters_text(suspect.counters.marked(by, self._clock()))
                run.execute("update unpoison_waiting set counters = ? where no = ?", (counters, -suspect.receipt))
        return found[0] if found else None

    def settle(self, settlement: Settlement) -> Sequence[str]:
        try:
            return self._settle(settlement)
        except _PartlyLost:
            with self.reading() as run:
                rest = rows.still_held(run, settlement, self._owner.no)
            self._settle(rest)
            raise ownership_lost(self.path) from None

    def _settle(self, settlement: Settlement) -> Sequence[str]:
        """Returns the ids of the dead letters."""
        gone = sorted([delivery.receipt for delivery in settlement.gone])
        moved = [kept.delivery.receipt for kept in settlement.kept] + [dead.delivery.receipt for dead in settlement.dead]
        remaining = self._leases.after(sorted(gone + moved) if moved else gone)
        with self.writing(durable=settlement.counts_more()) as run:
            self._check_ownership(run)
            owner, now = self._owner.no, self._clock()
            settled = sum(rows.keep(run, kept, owner, now) for kept in settlement.kept)
            letters = [rows.move_to_dlq(run, dead, owner, self.numbers[dead.delivery.source]) for dead in settlement.dead]
            settled += len(letters) - letters.count(None) + rows.remove(run, gone, owner)
            if settled != len(gone) + len(moved):
                raise _PartlyLost
            ended = [(first,) for first, left in remaining.items() if not left]
            run.executemany("delete from unpoison_leases where first = ?", ended)
        self._leases.apply(remaining)
        return [f"{dead.delivery.source}-{no}" for dead, no in zip(settlement.dead, letters, strict=True)]

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """There is no lease to renew: ownership lasts as long as the process. Raises if it was lost."""
        with self.reading() as run:
            self._check_ownership(run)
            if rows.still_held(run, Settlement(deliveries), self._owner.no).gone != list(deliveries):
                raise ownership_lost(self.path)

    def depth(self, source: str) -> Depth:
        number = self.numbers[source]
        with self.reading() as run:
            run.execute("begin")  # one snapshot for all counts: a message that moves meanwhile is counted once
            try:
                return rows.depth_of(run, number, self._clock())
            finally:
                run.execute("commit")

    def oldest(self, source: str) -> float | None:
        number = self.numbers[source]
        with self.reading() as run:
            return rows.oldest_of(run, number, self._clock())

    def waits(self, source: str) -> Waits:
        number = self.numbers[source]
        with self.reading() as run:
            return rows.waits_of(run, number, self._clock(), self._owner.no)

    def close(self) -> None:
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        with self._lock:
            if self._connection is not None:
                if self._owner.no:
                    self._deregister()
                self._connection.close()
                self._connection = None
            self._owner.release()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, explained(self.path):
            yield self._connected()

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        with self._lock, explained(self.path):
            connection = self._connected()
            if durable != self._durable:
                connection.execute("pragma synchronous=full" if durable else "pragma synchronous=normal")
                self._durable = durable
            with transaction(connection):
                yield connection

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise BrokerUnavailable(f"SQLite file {self.path!r} is not open. Call open() first.")
        return self._connection

    def _find_source(self, source: str) -> int | None:
        with self.reading() as run:
            (number,) = run.execute("select no from unpoison_sources where name = ?", (source,)).fetchone() or (None,)
        return number

    def _create_source(self, source: str) -> bool:
        """Returns whether this call created it; another process may have been faster."""
        statement = "insert or ignore into unpoison_sources (name) values (?)"
        if not self._create:
            with self.reading() as run:
                known = [name for (name,) in run.execute("select name from unpoison_sources order by no")]
            raise sql.no_source(source, self.path, known, statement.replace("?", repr(source)))
        with self.writing() as run:
            return run.execute(statement, (source,)).rowcount > 0

    def _register(self) -> None:
        """Become an owner, before the first message is taken."""
        if self._owner.no:
            return
        try:
            with self.writing(durable=False) as run:
                self._owner.register(run)
        except BaseException:
            self._owner.release()  # its row was rolled back, and the next owner gets the same number
            raise

    def _deregister(self) -> None:
        """Remove the owner if it holds nothing. Otherwise it stays, and the next consumer takes its messages over."""
        held = "select 1 from unpoison_leases where owner = :no union all select 1 from unpoison_waiting where owner = :no"
        with suppress(BrokerUnavailable), self.writing(durable=False) as run:
            if run.execute(held, {"no": self._owner.no}).fetchone() is None:
                run.execute("delete from unpoison_owners where no = ?", (self._owner.no,))
                self._owner.forget(self._owner.no)

    def _arm(self) -> None:
        if self._bell is not None:
            self._bell.arm()

    def _has_ready(self, number: int) -> bool:
        """Whether a message is ready. Takes no lock, so idle consumers block no writer."""
        with self.reading() as run:
            query = run.execute
            if query("select last > handed from unpoison_sources where no = ?", (number,)).fetchone()[0]:
                return True
            return query(_ANY_WAITING, (number, False, self._clock(), 1)).fetchone() is not None

    def _fetch_line(
        self, run: sqlite3.Connection, source: str, number: int, limit: int, budget: rows.ByteBudget
    ) -> tuple[int, list[Delivery]]:
        last, handed = run.execute("select last, handed from unpoison_sources where no = ?", (number,)).fetchone()
        first = number * POSITIONS + handed + 1
        query = "select position, id, body, key, headers, null from unpoison_line where position between ? and ?"
        found = budget.read(source, run, query, (first, first + min(limit, last - handed) - 1))
        if found:
            run.execute("update unpoison_sources set handed = handed + ? where no = ?", (len(found), number))
            run.execute("insert into unpoison_leases values (?, ?, ?)", (first, first + len(found) - 1, self._owner.no))
        return first, found

    def _fetch_waiting(
        self, run: sqlite3.Connection, source: str, number: int, limit: int, budget: rows.ByteBudget, *, alone: bool = False
    ) -> list[Delivery]:
        found = budget.read(source, run, _TAKE_WAITING, (number, alone, self._clock(), limit))
        if found:
            owned = [(self._owner.no, -delivery.receipt) for delivery in found]
            run.executemany("update unpoison_waiting set owner = ? where no = ?", owned)
        return found

    def _check_ownership(self, run: sqlite3.Connection) -> None:
        if not self._owner.is_valid(run):
            self._leases.clear()
            self._owner.release()
            raise ownership_lost(self.path)

    def _notices_vanished(self, connection: sqlite3.Connection) -> bool:
        """Whether a consumer vanished; then the next fetch takes its messages over. The bell asks, in its own thread."""
        if not self._owner.vanished(connection):
            return False
        self._looked_for_vanished = float("-inf")
        return True

    def _take_over_vanished(self) -> None:
        now = time.monotonic()
        if now - self._looked_for_vanished < TAKEOVER_EVERY:
            return
        self._looked_for_vanished = now
        with self.reading() as run:
            if not self._owner.vanished(run):
                return
        with self.writing() as run:
            vanished = self._owner.vanished(run)  # again, inside the transaction: another consumer may have been faster
            taken = [take_over(run, no, self._clock()) for no in vanished]
        for no, takeover in zip(vanished, taken, strict=True):
            self._owner.forget(no)
            takeover.tell()
