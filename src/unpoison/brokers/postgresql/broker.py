"""How does a PostgreSQL database serve as a broker?

Fetching hands out the next stretch of a source's line with one statement and notes it as one lease row, whatever its length;
settling a batch of successes is one statement as well. Neither waits for the disk: after a crash of the server the latest of them
are delivered again, which is allowed. What may not be lost is on disk before the call returns (publish, retry, dead letter).
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from unpoison.brokers.postgresql import rows
from unpoison.brokers.postgresql.connection import Session, parameters
from unpoison.brokers.postgresql.errors import failed
from unpoison.brokers.postgresql.owner import Owner, take_over, vanished
from unpoison.brokers.postgresql.rows import depth_of, waits_of
from unpoison.brokers.postgresql.schema import NEW_SOURCE, Connection, migrate, source_statement
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
from unpoison.port.broker_url import masked
from unpoison.port.reading import Unreadable
from unpoison.port.serialization import counters_text

TAKEOVER_EVERY = 0.5
"""Seconds between two looks for consumers that vanished."""


class PostgreSQLBroker:
    """One consumer's, or publisher's, way to the database. Ownership ends with the processes that hold it."""

    native = staticmethod(rows.native)
    capabilities = (
        Capability.DURABLE
        | Capability.SHARED
        | Capability.FENCED
        | Capability.ATOMIC
        | Capability.BROWSE
        | Capability.EXACT_DEPTH
    )

    def __init__(self, url: str) -> None:
        parameters(url)  # a URL that cannot be understood is refused here
        self.where = masked(url)
        self._session = Session(url)
        self._owner = Owner(url)
        self._create = True
        self._sources: dict[str, int] = {}
        self._created: list[str] = []  # sources that publishing has made, until it has said so
        self._listened: list[int] = []
        self._remaining: dict[int, int] = {}  # of each lease, how many of its messages are not settled
        self._has_waiting: set[int] = set()
        self._looked_for_vanished = float("-inf")

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self._create = create
        try:
            self._session.open()
            with self._session.use() as run:
                migrate(run, self.where, create=create, sources=sources)
            self._listened = [self.number(source) for source in sources]
            self._created.clear()
        except BaseException:
            self.close()
            raise
        if ring is not None:
            self._owner.listen(lambda: self._listened, ring)
        return ()

    def inherited_fds(self) -> Sequence[int]:
        self._owner.own()
        return self._owner.inherited_fds()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        refused = rows.unfit(messages) or without_source(messages, self.number)
        if refused:
            return all_or_none(messages, refused)
        committing = False
        try:
            with self._session.transaction() as run:
                for source, batch in by_source(messages).items():
                    rows.publish(run, self._sources[source], batch)
                committing = True
        except BrokerUnavailable as error:
            return failed(messages, error, committing=committing)
        created, self._created = self._created, []
        return Published(created=created) if created else STORED

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        number = self.number(source)
        self._take_over_from_the_vanished()
        if limit < 1:
            return ()
        self._owner.own()
        deliveries: list[Delivery] = []
        if number in self._has_waiting:
            # Retries and returns go first, but to no more than half: a flood of them must not starve new messages.
            deliveries = self._fetch_waiting(source, number, max(1, limit // 2), rows.FETCH_BYTES)
        room = rows.FETCH_BYTES - _weight(deliveries)
        if len(deliveries) < limit and room > 0:
            deliveries += self._fetch_line(source, number, limit - len(deliveries), room)
            room = rows.FETCH_BYTES - _weight(deliveries)
        if len(deliveries) < limit and room > 0 and number in self._has_waiting:
            deliveries += self._fetch_waiting(source, number, limit - len(deliveries), room)
        if not deliveries:
            self._owner.arm()
        return deliveries

    def has_suspect(self, source: str) -> bool:
        number = self.number(source)
        query = (
            "select exists (select from unpoison_waiting "
            "where source = %s and alone and owner is null and due <= statement_timestamp())"
        )
        with self._session.use() as run:
            return run.execute(query, (number,)).fetchone() == (True,)

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        number = self.number(source)
        self._owner.own()
        with self._session.transaction() as run:
            found = self._take_waiting(run, source, number, 1, alone=True)
            for suspect in found:
                if isinstance(suspect, Unreadable):
                    continue  # it is not started
                self._session.make_durable(run)
                counters = counters_text(suspect.counters.marked(by, time.time()))  # when, as this host says: for people only
                run.execute("update unpoison_waiting set counters = %s where no = %s", (counters, suspect.receipt[1]))
        if not found:
            self._check_ownership()
        return found[0] if found else None

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        touched = [*settlement.gone, *(kept.delivery for kept in settlement.kept), *(dead.delivery for dead in settlement.dead)]
        counts = Counter(lease for lease, _, _ in map(_receipt, touched) if lease)
        ended = [lease for lease, count in counts.items() if self._remaining.get(lease) == count]
        buried: list[int | None] = []
        if settlement.kept or settlement.dead:
            with self._session.transaction() as run:
                kept, buried = self._move(run, settlement)
                settled = kept + len(buried) - buried.count(None) + self._remove(run, settlement.gone, ended)
                # What removes the finished ones need not be on disk, and says so for the transaction; copies must be.
                self._session.make_durable(run)
        else:
            with self._session.use() as run:
                settled = self._remove(run, settlement.gone, ended)
        self._remaining.update({lease: self._remaining.get(lease, 0) - count for lease, count in counts.items()})
        for lease in ended:
            del self._remaining[lease]
        if settled != len(touched) and settled + self._settled_by_handlers(touched) != len(touched):
            self._check_ownership()
            raise self._lost()
        return [f"{dead.delivery.source}-{no}" if no else None for dead, no in zip(settlement.dead, buried, strict=True)]

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to prolong: this consumer says by itself that it is alive. Only tells when something was lost."""
        self._check_ownership()
        query = (
            "select (select count(*) from unpoison_line where source = %s and position = any (%s)) "
            "+ (select count(*) from unpoison_waiting where no = any (%s) and owner = %s)"
        )
        with self._session.use() as run:
            for source, batch in _by_source(deliveries).items():
                positions, numbers = _split(batch)
                values = (self.number(source), positions, numbers, self._owner.no)
                if run.execute(query, values).fetchone() != (len(batch),):
                    raise self._lost()

    def depth(self, source: str) -> Depth:
        number = self.number(source)
        with self._session.use() as run:
            return depth_of(run, number)

    def waits(self, source: str) -> Waits:
        number = self.number(source)
        with self._session.use() as run:
            return waits_of(run, number, self._owner.no)

    def close(self) -> None:
        if self._owner.no:
            self._sign_off()
        self._owner.close()
        self._session.close()

    @property
    def session(self) -> Session:
        return self._session

    def number(self, source: str) -> int:
        """The number of a source, given to it when it is first used."""
        if source not in self._sources:
            with self._session.use() as run:
                row = run.execute("select no from unpoison_sources where name = %s", (source,)).fetchone()
                if row is None:
                    row = self._create_source(source)
                self._sources[source] = row[0]
        return self._sources[source]

    def _create_source(self, source: str) -> tuple[int]:
        with self._session.transaction() as run:
            if not self._create:
                names = (
                    ", ".join(repr(name) for (name,) in run.execute("select name from unpoison_sources order by no")) or "none"
                )
                raise ConfigError(
                    f"Source {source!r} does not exist in {self.where!r}, and create=False forbids creating it. There are: "
                    f"{names}. Check the name; to make it:\n{source_statement(source)}"
                )
            if run.execute(NEW_SOURCE, (source,)).rowcount:
                self._created.append(source)
            found = run.execute("select no from unpoison_sources where name = %s", (source,)).fetchone()
        if found is None:
            raise BrokerUnavailable(f"Source {source!r} was removed from {self.where!r} while it was opened. Try again.")
        return (int(found[0]),)

    def _fetch_line(self, source: str, number: int, limit: int, room: int) -> list[Delivery]:
        values = {"source": number, "owner": self._owner.no, "limit": limit, "bytes": room}
        with self._session.use() as run:
            with run.pipeline():  # one message to the server, and one back
                run.execute("begin isolation level read committed")
                run.execute(rows.LOCK_LINE, values)
                answer = run.execute(rows.FETCH_LINE, values, binary=True)
                run.execute("commit")
            found = answer.fetchall()
            if found:
                self._note_waiting(number, there_are=found[0][5])
                self._remaining[found[0][0]] = len(found)
                return rows.of_line(source, self._owner.no, found)
            is_alive, has_waiting = run.execute(rows.LOOK, values).fetchone() or (True, False)
        self._note_waiting(number, there_are=has_waiting)
        if not is_alive:
            self._check_ownership()
        return []

    def _fetch_waiting(self, source: str, number: int, limit: int, room: int) -> list[Delivery]:
        with self._session.use() as run:
            found = self._take_waiting(run, source, number, limit, room)
        self._note_waiting(number, there_are=bool(found))  # perhaps not: then the next fetch finds that out
        return found

    def _take_waiting(
        self, run: Connection, source: str, number: int, limit: int, room: int = rows.FETCH_BYTES, *, alone: bool = False
    ) -> list[Delivery]:
        values = {"source": number, "owner": self._owner.no, "limit": limit, "bytes": room, "alone": alone}
        return rows.of_waiting(source, self._owner.no, run.execute(rows.FETCH_WAITING, values, binary=True).fetchall())

    def _note_waiting(self, number: int, *, there_are: bool) -> None:
        (self._has_waiting.add if there_are else self._has_waiting.discard)(number)

    def _move(self, run: Connection, settlement: Settlement) -> tuple[int, list[int | None]]:
        """How many were kept, and the number of each dead letter."""
        owner = self._owner.no
        settled = sum(rows.keep(run, kept, owner, self.number(kept.delivery.source)) for kept in settlement.kept)
        buried = [rows.bury(run, dead, owner, self.number(dead.delivery.source)) for dead in settlement.dead]
        for source in {kept.delivery.source for kept in settlement.kept}:
            run.execute(rows.NOTIFY, (self.number(source),))
        return settled, buried

    def _remove(self, run: Connection, gone: Sequence[Delivery], ended: Sequence[int]) -> int:
        """Take these off, and the leases that end with them. Returns how many there were."""
        removed = 0
        if not gone and ended:
            run.execute("delete from unpoison_leases where first = any (%s)", (ended,))
        for source, batch in _by_source(gone).items():
            positions, numbers = _split(batch)
            if positions or ended:
                values = {"source": self.number(source), "positions": positions, "ended": ended}
                removed += _number(run.execute(rows.GONE, values).fetchone())
            if numbers:
                removed += run.execute(rows.GONE_WAITING, {"numbers": numbers, "owner": self._owner.no}).rowcount
        return removed

    def _settled_by_handlers(self, deliveries: Sequence[Delivery]) -> int:
        """How many of these their handlers have settled, each in its own transaction: these are done, whatever came after."""
        leases, ats = [[receipt[field] for receipt in map(_receipt, deliveries)] for field in (0, 1)]
        with self._session.use() as run:
            return run.execute(rows.GONE_ALREADY, {"leases": leases, "ats": ats, "owner": self._owner.no}).rowcount

    def _check_ownership(self) -> None:
        with self._session.use() as run:
            if run.execute("select 1 from unpoison_owners where no = %s", (self._owner.no,)).fetchone() is None:
                self._remaining.clear()
                self._owner.lost()
                raise self._lost()

    def _lost(self) -> OwnershipLost:
        return OwnershipLost(
            f"Messages that this consumer held in {self.where!r} were taken over by another one. "
            f"Its results are dropped; the messages run there."
        )

    def _sign_off(self) -> None:
        """Leave no entry behind if nothing is held. Otherwise it stays, and the next consumer takes over what it names."""
        leave = (
            "delete from unpoison_owners where no = %(no)s and not exists (select from unpoison_leases where owner = %(no)s) "
            "and not exists (select from unpoison_waiting where owner = %(no)s)"
        )
        with suppress(BrokerUnavailable), self._session.use() as run:
            run.execute(leave, {"no": self._owner.no})

    def _take_over_from_the_vanished(self) -> None:
        now = time.monotonic()
        if now - self._looked_for_vanished < TAKEOVER_EVERY:
            return
        self._looked_for_vanished = now
        with self._session.use() as run:
            for owner in vanished(run, self._owner.no):
                with run.transaction():
                    takeover = take_over(run, owner)
                if takeover is not None:
                    takeover.tell()


_receipt = attrgetter("receipt")


def _by_source(deliveries: Sequence[Delivery]) -> dict[str, Sequence[Delivery]]:
    """Nearly always all of one source: then nothing is copied."""
    sources = set(map(attrgetter("source"), deliveries))
    if len(sources) == 1:
        return {sources.pop(): deliveries}
    return {source: [delivery for delivery in deliveries if delivery.source == source] for source in sources}


def _split(deliveries: Sequence[Delivery]) -> tuple[list[int], list[int]]:
    """Positions in the line, and numbers of those that wait."""
    receipts = list(map(_receipt, deliveries))
    return [at for lease, at, _ in receipts if lease], [at for lease, at, _ in receipts if not lease]


def _weight(deliveries: Sequence[Delivery]) -> int:
    return sum(map(len, map(attrgetter("body"), deliveries)))


def _number(row: Sequence[Any] | None) -> int:
    return int(row[0]) if row else 0
