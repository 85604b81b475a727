"""Owners: which consumer holds which messages, whether its processes are alive, and what happens when they are not.

An owner has a connection and a thread of its own. Its session holds an advisory lock. Workers inherit the socket, and the
server frees the lock as soon as the last process with that socket has ended. The thread also renews a lease, by the server's
clock; it counts where the lock cannot: when the network or the host fails silently, and behind a pooler, whose sessions are
shared. The same connection receives the notifications of new messages.
"""

import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg

from unpoison.brokers.postgresql.connection import connect, interrupt, is_pooled
from unpoison.brokers.postgresql.errors import explained
from unpoison.brokers.postgresql.schema import PGConnection
from unpoison.errors import UnpoisonError
from unpoison.model.message import UNTRIED
from unpoison.port.broker import Ring
from unpoison.port.serialization import counters_text
from unpoison.port.sql import returned_counters
from unpoison.port.takeovers import Takeover

LEASE = 30.0
"""Seconds without a renewal after which a consumer is taken for gone, if its lock says nothing either."""

LOOK_EVERY = 0.5
"""Seconds between two looks for due messages and vanished consumers. New messages are notified."""

LOOK_EVERY_POOLED = 0.1
"""The same behind a pooler, where there are no notifications."""

RECOVERY = 1.0
"""Seconds before reconnecting."""

ANSWER_WITHIN = 2.0
"""Seconds that closing waits for a server that is being asked."""

CHANNEL = "unpoison"

_CLASS = "'unpoison_owners'::regclass::oid::integer"
_GONE = (
    f"select no from unpoison_owners where no <> %s and "
    f"(until < statement_timestamp() or (is_locked and pg_try_advisory_xact_lock_shared({_CLASS}, no)))"
)
_NEXT_DUE = (
    "select extract(epoch from min(due) - statement_timestamp())::float8 from unpoison_waiting "
    "where source = any(%s) and alone = %s and owner is null and due > to_timestamp(%s)"
)


def vanished(connection: PGConnection, but: int) -> list[int]:
    """Other owners whose processes have ended, or whose lease has."""
    return [no for (no,) in connection.execute(_GONE, (but,)).fetchall()]


class Owner:
    """This consumer's row in the table of owners, and the connection that keeps it alive and listens."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.no = 0
        self._ring: Ring = lambda: None
        self._numbers: Callable[[], Sequence[int]] = list
        self._guard = threading.RLock()
        self._connection: PGConnection | None = None
        self._pooled = self._has_lock = False
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._is_armed = self._is_notified = False
        self._renew_at = 0.0
        self._rang_for = 0.0
        self._wake_reader, self._wake_writer = -1, -1

    def listen(self, numbers: Callable[[], Sequence[int]], ring: Ring) -> None:
        """From now on ring when these sources may have new messages."""
        self._numbers, self._ring = numbers, ring
        self._start()

    def register(self) -> None:
        """Become an owner, unless it is one."""
        if not self.no:
            self._start()
            with self._guard, explained(self._url):
                self._insert(self._connected())

    def inherited_fds(self) -> Sequence[int]:
        """The socket of the session that holds the lock. While any process holds a copy, the session lasts."""
        with self._guard:
            return () if self._connection is None or self._pooled or self._connection.closed else (self._connection.fileno(),)

    def arm(self) -> None:
        """A fetch found nothing: the next notification rings, and so does one that came since the fetch looked."""
        self._is_armed = True
        if self._is_notified:
            self._notify()

    def lost(self) -> None:
        """Another consumer took over what this owner held. The next fetch registers a new one."""
        with self._guard, suppress(psycopg.Error):
            if self._connection is not None and self._has_lock and not self._pooled:
                self._connection.execute(f"select pg_advisory_unlock({_CLASS}, %s)", (self.no,))
        self.no, self._has_lock = 0, False

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            os.write(self._wake_writer, b"x")
            self._thread.join(ANSWER_WITHIN)
            if self._thread.is_alive() and self._connection is not None:
                interrupt(self._connection)
                self._thread.join(ANSWER_WITHIN)
            self._thread = None
            os.close(self._wake_reader)
            os.close(self._wake_writer)
        self.no = 0

    def _start(self) -> None:
        if self._thread is None:
            self._closed.clear()
            self._wake_reader, self._wake_writer = os.pipe()
            self._thread = threading.Thread(target=self._run, name="unpoison-postgresql-owner", daemon=True)
            self._thread.start()

    def _insert(self, connection: PGConnection) -> None:
        """Insert the row and take the lock in one transaction: no other session sees one without the other."""
        insert = (
            "insert into unpoison_owners (host, pid, is_locked, until) values "
            "(%s, %s, %s, statement_timestamp() + %s * interval '1 second') returning no"
        )
        with connection.transaction():
            values = (socket.gethostname(), os.getpid(), not self._pooled, LEASE)
            (no,) = connection.execute(insert, values).fetchone() or (0,)
            if not self._pooled:
                connection.execute(f"select pg_advisory_lock({_CLASS}, %s)", (no,))
        self.no, self._renew_at, self._has_lock = no, time.monotonic() + LEASE / 3, True

    def _connected(self) -> PGConnection:
        """Reconnects if needed. If no other consumer took over meanwhile, nothing is lost: see `_retake_lock`."""
        if self._connection is None or self._connection.closed:
            connection = connect(self._url)
            self._pooled = is_pooled(connection)
            if not self._pooled:
                connection.add_notify_handler(lambda found: self._on_notification(found.payload))  # during other statements
                connection.execute(f"listen {CHANNEL}")
            self._connection, self._renew_at, self._has_lock = connection, 0.0, False
        return self._connection

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with self._guard, explained(self._url):
                    connection = self._connected()
                while not self._closed.is_set():
                    self._wait(connection, self._look(connection))
            except (UnpoisonError, psycopg.Error, OSError):  # the consumer's own connection fails too and reports it
                self._notify()
                self._closed.wait(RECOVERY)
        with self._guard, suppress(psycopg.Error):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _retake_lock(self, connection: PGConnection) -> None:
        """Try it without waiting: while the server thinks that the lost session lives, no other consumer gets the lock either."""
        taken = connection.execute(f"select pg_try_advisory_lock({_CLASS}, %s)", (self.no,)).fetchone()
        self._has_lock = taken == (True,)

    def _look(self, connection: PGConnection) -> float:
        """Renew the lease, and ring if there is a reason. Returns how long to wait."""
        with self._guard:
            if self.no and not self._has_lock and not self._pooled:
                self._retake_lock(connection)
            if self.no and time.monotonic() >= self._renew_at:
                renew = "update unpoison_owners set until = statement_timestamp() + %s * interval '1 second' where no = %s"
                connection.execute(renew, (LEASE, self.no))
                self._renew_at = time.monotonic() + LEASE / 3
            if self._pooled or vanished(connection, self.no):
                self._notify()
            return self._until_next_due(connection)

    def _until_next_due(self, connection: PGConnection) -> float:
        """Seconds to the next look. Each due time rings once: a message that the consumer leaves must not ring for ever."""
        pause, numbers = LOOK_EVERY_POOLED if self._pooled else LOOK_EVERY, list(self._numbers())
        if not numbers:
            return pause
        moments = [
            row[0]
            for alone in (False, True)
            if (row := connection.execute(_NEXT_DUE, (numbers, alone, self._rang_for)).fetchone()) and row[0] is not None
        ]
        soonest = min(moments, default=pause)
        if soonest <= 0:
            now = connection.execute("select extract(epoch from statement_timestamp())::float8").fetchone()
            self._rang_for = now[0] if now else 0.0
            self._notify()
            return 0.0
        return min(pause, soonest)

    def _wait(self, connection: PGConnection, pause: float) -> None:
        """Wait for a notification, at most `pause` seconds."""
        waiting = select.poll()
        waiting.register(self._wake_reader, select.POLLIN)
        waiting.register(connection.fileno(), select.POLLIN)
        if waiting.poll(max(0.0, pause) * 1000 + 1):
            with self._guard:
                connection.pgconn.consume_input()
                while found := connection.pgconn.notifies():
                    self._on_notification(found.extra)

    def _on_notification(self, payload: bytes | str) -> None:
        """Any program may send one, with anything in it."""
        told = payload if isinstance(payload, str) else payload.decode(errors="replace")
        if told in map(str, self._numbers()):
            self._notify()

    def _notify(self) -> None:
        """Ring if the consumer waits; otherwise remember it until it does."""
        self._is_notified = not self._is_armed
        if self._is_armed:
            self._is_armed = False
            self._ring()


_MOVE = """
with lease as (delete from unpoison_leases where owner = %(owner)s returning first, last, source, seen),
left_over as (
    delete from unpoison_line using lease where unpoison_line.source = lease.source and position between first and last
    and pg_visible_in_snapshot(xid, seen)
    returning unpoison_line.source, id, key, headers, body, published)
insert into unpoison_waiting (source, due, counters, id, key, headers, body, published)
select source, statement_timestamp(), %(counters)s, id, key, headers, body, published from left_over
returning source
"""


def take_over(run: PGConnection, owner: int) -> Takeover | None:
    """Return everything that this owner held to its sources: whether it had been started is not known.

    Call it in a transaction. Returns None if another consumer was faster. The row of the owner goes first: a fetch of the owner
    itself either ended before, and is seen here, or finds no row.
    """
    leave = "delete from unpoison_owners where no = %s returning host, pid, extract(epoch from since)::float8"
    gone = run.execute(leave, (owner,)).fetchone()
    if gone is None:
        return None
    run.execute("delete from unpoison_settled where owner = %s", (owner,))
    moved = run.execute(_MOVE, {"owner": owner, "counters": counters_text(UNTRIED.returned())})
    held = Counter(source for (source,) in moved.fetchall())
    waiting = "select no, source, counters from unpoison_waiting where owner = %s for update"
    for no, source, text in run.execute(waiting, (owner,)).fetchall():
        held[source] += 1
        back = "update unpoison_waiting set owner = null, due = statement_timestamp(), counters = %s where no = %s"
        run.execute(back, (returned_counters(text), no))
    query = "select no, name from unpoison_sources where no = any (%s)"
    names: dict[int, str] = dict(run.execute(query, (list(held),)).fetchall())
    host, pid, since = gone
    return Takeover(f"{host}:{pid}", since, {names[source]: count for source, count in held.items()})
