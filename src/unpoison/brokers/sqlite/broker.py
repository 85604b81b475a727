"""How does a SQLite file serve as a broker?

Fetching hands out the next stretch of a source's line and notes it as one lease row, whatever its length; settling a
batch of successes removes that stretch with one statement. So a hundred messages cost two short transactions.

What may not be lost is synced to the disk before the call returns (publish, retry, dead letter). Leases and finished
messages are not: after a power cut the latest of them are delivered again, which is allowed.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from unpoison.brokers.sqlite import errors, rows
from unpoison.brokers.sqlite.bell import Bell
from unpoison.brokers.sqlite.errors import explained
from unpoison.brokers.sqlite.file import connect, path_of
from unpoison.brokers.sqlite.owner import Leases, Owner, take_over
from unpoison.brokers.sqlite.rows import depth_of, waits_of
from unpoison.brokers.sqlite.schema import POSITIONS, migrate
from unpoison.errors import BrokerUnavailable, ConfigError, OwnershipLost
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import (
    STORED,
    Capability,
    Depth,
    Finding,
    Published,
    Ring,
    Settlement,
    Waits,
    all_or_none,
    by_source,
    without_source,
)
from unpoison.port.reading import Unreadable
from unpoison.port.serialization import counters_text

TAKEOVER_EVERY = 0.5
"""Seconds between two looks for consumers that vanished."""

_NOW = "from unpoison_waiting where source = ? and alone = ? and owner is null and due <= ? order by due limit ?"
_ANY_WAITING = f"select 1 {_NOW}"
_TAKE_WAITING = f"select -no, id, body, key, headers, counters {_NOW}"


class _PartlyLost(Exception):
    """Rolls a settle back: some of what it names is not held by this consumer any more."""


class SQLiteBroker:
    """One connection to the file. Ownership ends with the processes that hold it, not with a clock."""

    native = staticmethod(rows.native)
    capabilities = (
        Capability.DURABLE
        | Capability.SHARED
        | Capability.FENCED
        | Capability.ATOMIC
        | Capability.BROWSE
        | Capability.EXACT_DEPTH
    )

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path_of(url)
        self._clock = clock
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._durable = False
        self._create = True
        self._sources: dict[str, int] = {}
        self._created: list[str] = []  # sources that publishing has made, until it has said so
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
            numbers = [self.number(source) for source in sources]
            self._created.clear()
        except BaseException:
            self.close()
            raise
        if ring is not None:
            self._bell = Bell(self.path, numbers, ring, self._notices_vanished, self._clock)
        return ()

    def inherited_fds(self) -> Sequence[int]:
        self._own()
        return self._owner.inherited_fds()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        if missing := without_source(messages, self.number):
            return all_or_none(messages, missing)
        committing = False
        try:
            with self.writing() as run:
                for source, batch in by_source(messages).items():
                    rows.publish(run, self._sources[source], batch, self._clock())
                committing = True
        except BrokerUnavailable as error:
            largest = self._connected().getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
            return errors.failed(messages, error, largest, committing=committing)
        created, self._created = self._created, []
        return Published(created=created) if created else STORED

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        number = self.number(source)
        self._take_over_from_the_vanished()
        if limit < 1 or not (number in self._flowing or self._has_some(number)):
            self._arm()
            return ()
        self._own()
        room = rows.Room()
        with self.writing(durable=False) as run:
            self._check_ownership(run)
            # Retries and returns go first, but to no more than half: a flood of them must not starve new messages.
            deliveries = self._fetch_waiting(run, source, number, max(1, limit // 2), room)
            first, fresh = self._fetch_line(run, source, number, limit - len(deliveries), room)
            deliveries += fresh
            if len(deliveries) < limit:
                deliveries += self._fetch_waiting(run, source, number, limit - len(deliveries), room)
        if fresh:
            self._leases.add(first, len(fresh))
        if len(deliveries) < limit:
            self._flowing.discard(number)
            self._arm()
        else:
            self._flowing.add(number)
        return deliveries

    def has_suspect(self, source: str) -> bool:
        number = self.number(source)
        with self.reading() as run:
            return run.execute(_ANY_WAITING, (number, True, self._clock(), 1)).fetchone() is not None

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        number = self.number(source)
        self._own()
        with self.writing() as run:
            self._check_ownership(run)
            found = self._fetch_waiting(run, source, number, 1, rows.Room(), alone=True)
            for suspect in found:
                if isinstance(suspect, Unreadable):
                    continue  # it is not started
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
            raise self._lost() from None

    def _settle(self, settlement: Settlement) -> Sequence[str]:
        """Returns the ids of the dead letters."""
        keeps = bool(settlement.kept or settlement.dead)
        gone = sorted([delivery.receipt for delivery in settlement.gone])
        moved = [kept.delivery.receipt for kept in settlement.kept] + [dead.delivery.receipt for dead in settlement.dead]
        progress = self._leases.after(sorted(gone + moved) if moved else gone)
        with self.writing(durable=keeps) as run:
            self._check_ownership(run)
            owner, now = self._owner.no, self._clock()
            settled = sum(rows.keep(run, kept, owner, now) for kept in settlement.kept)
            buried = [rows.bury(run, dead, owner, self.number(dead.delivery.source)) for dead in settlement.dead]
            settled += len(buried) - buried.count(None) + rows.remove(run, gone, owner)
            if settled != len(gone) + len(moved):
                raise _PartlyLost
            run.executemany("delete from unpoison_leases where first = ?", [(first,) for first in progress.ended])
        self._leases.apply(progress)
        return [f"{dead.delivery.source}-{no}" for dead, no in zip(settlement.dead, buried, strict=True)]

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to prolong: ownership lasts as long as the process. Only tells when it was lost."""
        with self.reading() as run:
            self._check_ownership(run)
            if rows.still_held(run, Settlement(deliveries), self._owner.no).gone != list(deliveries):
                raise self._lost()

    def depth(self, source: str) -> Depth:
        number = self.number(source)
        with self.reading() as run:
            run.execute("begin")  # one moment for all counts: a message on its way from here to there is counted once
            try:
                return depth_of(run, number, self._clock())
            finally:
                run.execute("commit")

    def waits(self, source: str) -> Waits:
        number = self.number(source)
        with self.reading() as run:
            return waits_of(run, number, self._clock(), self._owner.no)

    def close(self) -> None:
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        with self._lock:
            if self._connection is not None:
                if self._owner.no:
                    self._sign_off()
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
            connection.execute("begin immediate")
            try:
                yield connection
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:  # some errors, such as a full disk, have rolled it back already
                    connection.execute("rollback")
                raise

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise BrokerUnavailable(f"SQLite file {self.path!r} is not open. Call open() first.")
        return self._connection

    def number(self, source: str) -> int:
        """The number of a source, given to it when it is first used."""
        if source not in self._sources:
            with self.reading() as run:
                query = run.execute
                if query("select 1 from unpoison_sources where name = ?", (source,)).fetchone() is None:
                    self._create_source(source)
                self._sources[source] = query("select no from unpoison_sources where name = ?", (source,)).fetchone()[0]
        return self._sources[source]

    def _create_source(self, source: str) -> None:
        statement = "insert or ignore into unpoison_sources (name) values (?)"
        if not self._create:
            raise ConfigError(
                f"Source {source!r} does not exist in {self.path!r}, and nothing is to be created here. There are: "
                f"{self._names()}. Check the name; to make it, run in that file: {statement.replace('?', repr(source))}"
            )
        with self.writing() as run:
            run.execute(statement, (source,))
        self._created.append(source)

    def _names(self) -> str:
        with self.reading() as run:
            return ", ".join(repr(name) for (name,) in run.execute("select name from unpoison_sources order by no")) or "none"

    def _own(self) -> None:
        """Become an owner before the first message is taken."""
        if self._owner.no:
            return
        try:
            with self.writing(durable=False) as run:
                self._owner.register(run)
        except BaseException:
            self._owner.release()  # the entry was rolled back, and its number will be given to the next
            raise

    def _sign_off(self) -> None:
        """Leave no entry behind if nothing is held. Otherwise it stays, and the next consumer takes over what it names."""
        held = "select 1 from unpoison_leases where owner = :no union all select 1 from unpoison_waiting where owner = :no"
        with suppress(BrokerUnavailable), self.writing(durable=False) as run:
            if run.execute(held, {"no": self._owner.no}).fetchone() is None:
                run.execute("delete from unpoison_owners where no = ?", (self._owner.no,))
                self._owner.forget(self._owner.no)

    def _arm(self) -> None:
        if self._bell is not None:
            self._bell.arm()

    def _has_some(self, number: int) -> bool:
        """Whether there is anything to hand out; a look that takes no lock, so that idle consumers disturb nobody."""
        with self.reading() as run:
            query = run.execute
            if query("select last > handed from unpoison_sources where no = ?", (number,)).fetchone()[0]:
                return True
            return query(_ANY_WAITING, (number, False, self._clock(), 1)).fetchone() is not None

    def _fetch_line(
        self, run: sqlite3.Connection, source: str, number: int, limit: int, room: rows.Room
    ) -> tuple[int, list[Delivery]]:
        last, handed = run.execute("select last, handed from unpoison_sources where no = ?", (number,)).fetchone()
        first = number * POSITIONS + handed + 1
        query = "select position, id, body, key, headers, null from unpoison_line where position between ? and ?"
        found = room.read(source, run, query, (first, first + min(limit, last - handed) - 1))
        if found:
            run.execute("update unpoison_sources set handed = handed + ? where no = ?", (len(found), number))
            run.execute("insert into unpoison_leases values (?, ?, ?)", (first, first + len(found) - 1, self._owner.no))
        return first, found

    def _fetch_waiting(
        self, run: sqlite3.Connection, source: str, number: int, limit: int, room: rows.Room, *, alone: bool = False
    ) -> list[Delivery]:
        found = room.read(source, run, _TAKE_WAITING, (number, alone, self._clock(), limit))
        if found:
            owned = [(self._owner.no, -delivery.receipt) for delivery in found]
            run.executemany("update unpoison_waiting set owner = ? where no = ?", owned)
        return found

    def _check_ownership(self, run: sqlite3.Connection) -> None:
        if not self._owner.is_valid(run):
            self._leases.clear()
            self._owner.release()
            raise self._lost()

    def _lost(self) -> OwnershipLost:
        return OwnershipLost(
            f"Messages that this consumer held in {self.path!r} were taken over by another one. "
            f"Its results are dropped; the messages run there."
        )

    def _notices_vanished(self, connection: sqlite3.Connection) -> bool:
        """Asked by the bell, in its thread: whether a consumer vanished. Then the next fetch looks at once."""
        if not self._owner.vanished(connection):
            return False
        self._looked_for_vanished = float("-inf")
        return True

    def _take_over_from_the_vanished(self) -> None:
        now = time.monotonic()
        if now - self._looked_for_vanished < TAKEOVER_EVERY:
            return
        self._looked_for_vanished = now
        with self.reading() as run:
            if not self._owner.vanished(run):
                return
        with self.writing() as run:
            vanished = self._owner.vanished(run)  # looked at again: another consumer may have been faster
            taken = [take_over(run, no, self._clock()) for no in vanished]
        for no, takeover in zip(vanished, taken, strict=True):
            self._owner.forget(no)
            takeover.tell()
