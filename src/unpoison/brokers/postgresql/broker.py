"""A PostgreSQL database as a broker.

`fetch` hands out the next range of a source's line with one statement and records it as one lease row, however long the range
is. `settle` deletes a batch of successes with one statement. Neither waits for the disk: after a crash of the server the
latest of them are delivered again, which the contract allows. Publish, retry and dead letter are on disk before the call
returns.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter

from unpoison.brokers.postgresql import rows
from unpoison.brokers.postgresql.connection import Connection, parameters
from unpoison.brokers.postgresql.errors import failed
from unpoison.brokers.postgresql.owner import LOOK_EVERY, Owner, take_over, vanished
from unpoison.brokers.postgresql.schema import NEW_SOURCE, PGConnection, migrate, source_statement
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Delivery, Outgoing
from unpoison.port import sql
from unpoison.port.broker import ALL_CAPABILITIES, Depth, Finding, Published, Ring, Settlement, Waits, all_or_none
from unpoison.port.broker_url import masked
from unpoison.port.reading import FETCH_BYTES, Unreadable, body_bytes
from unpoison.port.serialization import counters_text
from unpoison.port.takeovers import TAKEOVER_EVERY, ownership_lost


class PostgreSQLBroker:
    """One connection to the database. A consumer owns its messages until all its processes have ended."""

    native = staticmethod(rows.native)
    capabilities = ALL_CAPABILITIES

    def __init__(self, url: str) -> None:
        parameters(url)  # refuses a URL that libpq does not understand
        self.where = masked(url)
        self.connection = Connection(url)
        self._owner = Owner(url)
        self._create = True
        self.numbers = sql.SourceNumbers(self._find_source, self._create_source)
        self._listened: list[int] = []
        self._remaining: dict[int, int] = {}  # how many messages of each lease are not settled
        self._has_waiting: set[int] = set()
        self._looked_for_vanished = float("-inf")

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self._create = create
        try:
            self.connection.open()
            with self.connection.use() as run:
                migrate(run, self.where, create=create, sources=sources)
            self._listened = [self.numbers[source] for source in sources]
            self.numbers.created.clear()
        except BaseException:
            self.close()
            raise
        if ring is not None:
            self._owner.listen(lambda: self._listened, ring)
        return ()

    def inherited_fds(self) -> Sequence[int]:
        self._owner.register()
        return self._owner.inherited_fds()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        if refused := rows.unfit(messages):
            return all_or_none(messages, refused)
        return sql.publish(messages, self.numbers, self.connection.transaction, rows.publish, failed)

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        number = self.numbers[source]
        self._take_over_vanished()
        if limit < 1:
            return ()
        self._owner.register()
        deliveries: list[Delivery] = []
        if number in self._has_waiting:
            # Retries and returned messages go first, but take at most half: a flood of them must not starve new ones.
            deliveries = self._fetch_waiting(source, number, max(1, limit // 2), FETCH_BYTES)
        room = FETCH_BYTES - body_bytes(deliveries)
        if len(deliveries) < limit and room > 0:
            deliveries += self._fetch_line(source, number, limit - len(deliveries), room)
            room = FETCH_BYTES - body_bytes(deliveries)
        if len(deliveries) < limit and room > 0 and number in self._has_waiting:
            deliveries += self._fetch_waiting(source, number, limit - len(deliveries), room)
        if not deliveries:
            self._owner.arm()
        return deliveries

    def has_suspect(self, source: str) -> bool:
        number = self.numbers[source]
        query = (
            "select exists (select from unpoison_waiting "
            "where source = %s and alone and owner is null and due <= statement_timestamp())"
        )
        with self.connection.use() as run:
            return run.execute(query, (number,)).fetchone() == (True,)

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        number = self.numbers[source]
        self._owner.register()
        with self.connection.transaction() as run:
            found = self._take_waiting(run, source, number, 1, alone=True)
            for suspect in found:
                if isinstance(suspect, Unreadable):
                    continue  # the consumer does not start it
                self.connection.make_durable(run)
                counters = counters_text(suspect.counters.marked(by, time.time()))  # this host's clock: only people read it
                run.execute("update unpoison_waiting set counters = %s where no = %s", (counters, suspect.receipt[1]))
        if not found:
            self._check_ownership()
        return found[0] if found else None

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        touched = [*settlement.gone, *(kept.delivery for kept in settlement.kept), *(dead.delivery for dead in settlement.dead)]
        counts = Counter(lease for lease, _, _ in map(_receipt, touched) if lease)
        ended = [lease for lease, count in counts.items() if self._remaining.get(lease) == count]
        letters: list[int | None] = []
        if settlement.kept or settlement.dead:
            with self.connection.transaction() as run:
                kept, letters = self._move(run, settlement)
                settled = kept + len(letters) - letters.count(None) + self._remove(run, settlement.gone, ended)
                # The statement that removes finished messages switches syncing off for the transaction; copies need it.
                self.connection.make_durable(run)
        else:
            with self.connection.use() as run:
                settled = self._remove(run, settlement.gone, ended)
        self._remaining.update({lease: self._remaining.get(lease, 0) - count for lease, count in counts.items()})
        for lease in ended:
            del self._remaining[lease]
        if settled != len(touched) and settled + self._settled_by_handlers(touched) != len(touched):
            self._check_ownership()
            raise ownership_lost(self.where)
        return [f"{dead.delivery.source}-{no}" if no else None for dead, no in zip(settlement.dead, letters, strict=True)]

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """There is no lease to renew: the owner's own thread does that. Raises if messages were lost."""
        self._check_ownership()
        query = (
            "select (select count(*) from unpoison_line where source = %s and position = any (%s)) "
            "+ (select count(*) from unpoison_waiting where no = any (%s) and owner = %s)"
        )
        with self.connection.use() as run:
            for source, batch in _by_source(deliveries).items():
                positions, numbers = _split(batch)
                values = (self.numbers[source], positions, numbers, self._owner.no)
                if run.execute(query, values).fetchone() != (len(batch),):
                    raise ownership_lost(self.where)

    def depth(self, source: str) -> Depth:
        number = self.numbers[source]
        with self.connection.use() as run:
            return rows.depth_of(run, number)

    def oldest(self, source: str) -> float | None:
        number = self.numbers[source]
        with self.connection.use() as run:
            return rows.oldest_of(run, number)

    def waits(self, source: str) -> Waits:
        number = self.numbers[source]
        with self.connection.use() as run:
            return rows.waits_of(run, number, self._owner.no)

    def close(self) -> None:
        no = self._owner.no
        self._owner.close()  # first, since its thread renews what is ended next
        if no:
            self._deregister(no)
        self.connection.close()

    def _find_source(self, source: str) -> int | None:
        with self.connection.use() as run:
            row = run.execute("select no from unpoison_sources where name = %s", (source,)).fetchone()
        return None if row is None else int(row[0])

    def _create_source(self, source: str) -> bool:
        """Returns whether this call created it; another process may have been faster."""
        with self.connection.transaction() as run:
            if self._create:
                return run.execute(NEW_SOURCE, (source,)).rowcount > 0
            known = [name for (name,) in run.execute("select name from unpoison_sources order by no")]
        raise sql.no_source(source, self.where, known, source_statement(source))

    def _fetch_line(self, source: str, number: int, limit: int, room: int) -> list[Delivery]:
        values = {"source": number, "owner": self._owner.no, "limit": limit, "bytes": room}
        with self.connection.use() as run:
            with run.pipeline():  # one round trip
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
        with self.connection.use() as run:
            found = self._take_waiting(run, source, number, limit, room)
        self._note_waiting(number, there_are=bool(found))  # if none is left, the next fetch finds that out
        return found

    def _take_waiting(
        self, run: PGConnection, source: str, number: int, limit: int, room: int = FETCH_BYTES, *, alone: bool = False
    ) -> list[Delivery]:
        values = {"source": number, "owner": self._owner.no, "limit": limit, "bytes": room, "alone": alone}
        return rows.of_waiting(source, self._owner.no, run.execute(rows.FETCH_WAITING, values, binary=True).fetchall())

    def _note_waiting(self, number: int, *, there_are: bool) -> None:
        (self._has_waiting.add if there_are else self._has_waiting.discard)(number)

    def _move(self, run: PGConnection, settlement: Settlement) -> tuple[int, list[int | None]]:
        """How many were kept, and the number of each dead letter."""
        owner = self._owner.no
        settled = 0
        for source, together in groupby(settlement.kept, lambda kept: kept.delivery.source):
            kept, number = list(together), self.numbers[source]
            settled += rows.keep(run, kept, owner, number)
            if any(each.after < LOOK_EVERY for each in kept):  # the others look that often for what is due
                run.execute(rows.NOTIFY, (number,))
        letters = [rows.move_to_dlq(run, dead, owner, self.numbers[dead.delivery.source]) for dead in settlement.dead]
        return settled, letters

    def _remove(self, run: PGConnection, gone: Sequence[Delivery], ended: Sequence[int]) -> int:
        """Delete these messages, and the leases that end with them. Returns how many messages there were."""
        removed = 0
        if not gone and ended:
            run.execute("delete from unpoison_leases where first = any (%s)", (ended,))
        for source, batch in _by_source(gone).items():
            positions, numbers = _split(batch)
            if positions or ended:
                values = {"source": self.numbers[source], "positions": positions, "ended": ended}
                (count,) = run.execute(rows.GONE, values).fetchone() or (0,)
                removed += count
            if numbers:
                removed += run.execute(rows.GONE_WAITING, {"numbers": numbers, "owner": self._owner.no}).rowcount
        return removed

    def _settled_by_handlers(self, deliveries: Sequence[Delivery]) -> int:
        """How many of these their handlers settled in their own transactions: they are done, whatever came after."""
        leases, ats = [[receipt[field] for receipt in map(_receipt, deliveries)] for field in (0, 1)]
        with self.connection.use() as run:
            return run.execute(rows.GONE_ALREADY, {"leases": leases, "ats": ats, "owner": self._owner.no}).rowcount

    def _check_ownership(self) -> None:
        with self.connection.use() as run:
            if run.execute("select 1 from unpoison_owners where no = %s", (self._owner.no,)).fetchone() is None:
                self._remaining.clear()
                self._owner.lost()
                raise ownership_lost(self.where)

    def _deregister(self, no: int) -> None:
        """Remove the owner if it holds nothing. Otherwise its lease ends now, and the next consumer takes its messages over.

        Its lock alone would not do: the server frees it only when it gets round to reading that the session has ended.
        """
        leave = (
            "delete from unpoison_owners where no = %(no)s and not exists (select from unpoison_leases where owner = %(no)s) "
            "and not exists (select from unpoison_waiting where owner = %(no)s)"
        )
        with suppress(BrokerUnavailable), self.connection.use() as run:
            if run.execute(leave, {"no": no}).rowcount == 0:
                run.execute("update unpoison_owners set until = '-infinity' where no = %s", (no,))

    def _take_over_vanished(self) -> None:
        now = time.monotonic()
        if now - self._looked_for_vanished < TAKEOVER_EVERY:
            return
        self._looked_for_vanished = now
        with self.connection.use() as run:
            for owner in vanished(run, self._owner.no):
                with run.transaction():
                    takeover = take_over(run, owner)
                if takeover is not None:
                    takeover.tell()


_receipt = attrgetter("receipt")


def _by_source(deliveries: Sequence[Delivery]) -> dict[str, Sequence[Delivery]]:
    """Nearly always one source: then nothing is copied."""
    sources = set(map(attrgetter("source"), deliveries))
    if len(sources) == 1:
        return {sources.pop(): deliveries}
    return {source: [delivery for delivery in deliveries if delivery.source == source] for source in sources}


def _split(deliveries: Sequence[Delivery]) -> tuple[list[int], list[int]]:
    """Positions in the line, and numbers in `waiting`."""
    receipts = list(map(_receipt, deliveries))
    return [at for lease, at, _ in receipts if lease], [at for lease, at, _ in receipts if not lease]
