"""How does a consumer show that it is there, and how does it hear of new messages?

Through one connection with a thread of its own. In its session it holds an advisory lock with its number: the lock is free
at once when the last process that has this connection's socket is gone, and workers inherit it. Every few seconds it says
until when it is to be taken for alive, by the server's clock; that counts where the lock cannot: when the network or the host
is gone without a word, and behind a pooler, which gives sessions to many. Over the same connection the server tells of news.
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

from unpoison.brokers.postgresql.connection import connect, is_pooled
from unpoison.brokers.postgresql.errors import explained
from unpoison.brokers.postgresql.schema import Connection
from unpoison.errors import UnpoisonError
from unpoison.model.message import UNTRIED
from unpoison.port.broker import Ring
from unpoison.port.reading import read_one
from unpoison.port.serialization import counters_text, read_counters
from unpoison.port.takeovers import Takeover

LEASE = 30.0
"""Seconds after which a consumer that says nothing, and whose lock says nothing either, is taken for gone."""

LOOK_EVERY = 0.5
"""Seconds between two looks for delays that are over and consumers that vanished. News come by themselves."""

LOOK_EVERY_POOLED = 0.1
"""As LOOK_EVERY, behind a pooler, where news do not come by themselves."""

RECOVERY = 1.0
"""Seconds before a lost connection is made again."""

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


def vanished(connection: Connection, but: int) -> list[int]:
    """Owners besides this one that are gone."""
    return [no for (no,) in connection.execute(_GONE, (but,)).fetchall()]


class Owner:
    """This consumer at the server: its number as an owner, and its ear."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.no = 0
        self._ring: Ring = lambda: None
        self._numbers: Callable[[], Sequence[int]] = list
        self._guard = threading.RLock()
        self._connection: Connection | None = None
        self._pooled = self._has_lock = False
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._is_armed = self._has_news = False
        self._beats_at = 0.0
        self._rung_for = 0.0
        self._hang_up, self._wake = -1, -1

    def listen(self, numbers: Callable[[], Sequence[int]], ring: Ring) -> None:
        """From now on ring when there may be something new for these sources."""
        self._numbers, self._ring = numbers, ring
        self._start()

    def own(self) -> int:
        """This consumer's number as an owner; it becomes one when first asked."""
        if not self.no:
            self._start()
            with self._guard, explained(self._url):
                self._register(self._connected())
        return self.no

    def inherited_fds(self) -> Sequence[int]:
        """The socket of the session that holds the lock: while a process has a copy of it, the session goes on."""
        with self._guard:
            return () if self._connection is None or self._pooled or self._connection.closed else (self._connection.fileno(),)

    def arm(self) -> None:
        """Called when a fetch found nothing: the next news ring, and so do those that came since the fetch looked."""
        self._is_armed = True
        if self._has_news:
            self._tell()

    def lost(self) -> None:
        """Somebody took over what this owner held. The next fetch makes a new one."""
        with self._guard, suppress(psycopg.Error):
            if self._connection is not None and self._has_lock and not self._pooled:
                self._connection.execute(f"select pg_advisory_unlock({_CLASS}, %s)", (self.no,))
        self.no, self._has_lock = 0, False

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            os.write(self._wake, b"x")
            self._thread.join(timeout=5)
            self._thread = None
            os.close(self._hang_up)
            os.close(self._wake)
        with self._guard:
            if self._connection is not None:
                with suppress(psycopg.Error):
                    self._connection.close()
                self._connection = None
        self.no = 0

    def _start(self) -> None:
        if self._thread is None:
            self._closed.clear()
            self._hang_up, self._wake = os.pipe()
            self._thread = threading.Thread(target=self._live, name="unpoison-postgresql-owner", daemon=True)
            self._thread.start()

    def _register(self, connection: Connection) -> None:
        """Enter the owner and take its lock, in one transaction: nobody sees the one without the other."""
        enter = (
            "insert into unpoison_owners (host, pid, is_locked, until) values "
            "(%s, %s, %s, statement_timestamp() + %s * interval '1 second') returning no"
        )
        with connection.transaction():
            values = (socket.gethostname(), os.getpid(), not self._pooled, LEASE)
            (no,) = connection.execute(enter, values).fetchone() or (0,)
            if not self._pooled:
                connection.execute(f"select pg_advisory_lock({_CLASS}, %s)", (no,))
        self.no, self._beats_at, self._has_lock = no, time.monotonic() + LEASE / 3, True

    def _connected(self) -> Connection:
        """Made again when it was lost. If nobody has taken over meanwhile, nothing has happened: see `_take_lock_again`."""
        if self._connection is None or self._connection.closed:
            connection = connect(self._url)
            self._pooled = is_pooled(connection)
            if not self._pooled:
                connection.add_notify_handler(lambda news: self._hear(news.payload))  # told in the middle of something else
                connection.execute(f"listen {CHANNEL}")
            self._connection, self._beats_at, self._has_lock = connection, 0.0, False
        return self._connection

    def _live(self) -> None:
        while not self._closed.is_set():
            try:
                with self._guard, explained(self._url):
                    connection = self._connected()
                while not self._closed.is_set():
                    self._wait(connection, self._look(connection))
            except (UnpoisonError, psycopg.Error, OSError):  # the consumer meets the same error and reports it
                self._tell()
                self._closed.wait(RECOVERY)

    def _take_lock_again(self, connection: Connection) -> None:
        """Not at any price: the server may still take the lost connection for alive, and then nobody else can have it either."""
        taken = connection.execute(f"select pg_try_advisory_lock({_CLASS}, %s)", (self.no,)).fetchone()
        self._has_lock = taken == (True,)

    def _look(self, connection: Connection) -> float:
        """Say that this consumer is alive, and see whether there is something to ring for. Returns how long to wait."""
        with self._guard:
            if self.no and not self._has_lock and not self._pooled:
                self._take_lock_again(connection)
            if self.no and time.monotonic() >= self._beats_at:
                beat = "update unpoison_owners set until = statement_timestamp() + %s * interval '1 second' where no = %s"
                connection.execute(beat, (LEASE, self.no))
                self._beats_at = time.monotonic() + LEASE / 3
            if self._pooled or vanished(connection, self.no):
                self._tell()
            return self._until_next_due(connection)

    def _until_next_due(self, connection: Connection) -> float:
        """Rung once for each moment: what the consumer then leaves lying must not ring for ever."""
        pause, numbers = LOOK_EVERY_POOLED if self._pooled else LOOK_EVERY, list(self._numbers())
        if not numbers:
            return pause
        moments = [
            row[0]
            for alone in (False, True)
            if (row := connection.execute(_NEXT_DUE, (numbers, alone, self._rung_for)).fetchone()) and row[0] is not None
        ]
        soonest = min(moments, default=pause)
        if soonest <= 0:
            (self._rung_for,) = connection.execute("select extract(epoch from statement_timestamp())::float8").fetchone() or (
                0.0,
            )
            self._tell()
            return 0.0
        return min(pause, soonest)

    def _wait(self, connection: Connection, pause: float) -> None:
        """Until the server tells something, or so long."""
        waiting = select.poll()
        waiting.register(self._hang_up, select.POLLIN)
        waiting.register(connection.fileno(), select.POLLIN)
        if waiting.poll(max(0.0, pause) * 1000 + 1):
            with self._guard:
                connection.pgconn.consume_input()
                while news := connection.pgconn.notifies():
                    self._hear(news.extra)

    def _hear(self, payload: bytes | str) -> None:
        if int(payload) in self._numbers():
            self._tell()

    def _tell(self) -> None:
        """Ring if somebody waits; else remember it for the moment somebody does."""
        self._has_news = not self._is_armed
        if self._is_armed:
            self._is_armed = False
            self._ring()


# What happens to the messages of a consumer that vanished?
#
# They come back as *returned*: whether they had been started is not known.


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


def take_over(run: Connection, owner: int) -> Takeover | None:
    """Give everything that this owner held back to its sources, in a transaction of the caller's. None if it is done already.

    Its entry goes first: a fetch of its own that is under way either has ended by then, and is seen here, or finds no entry.
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
        # What cannot be read stays as it is; the fetch that finds it makes it a dead letter.
        counters = read_one(text, lambda each: counters_text(read_counters(each).returned()), lambda each, _: each)
        run.execute(back, (counters, no))
    names: dict[int, str] = dict(
        run.execute("select no, name from unpoison_sources where no = any (%s)", (list(held),)).fetchall()
    )
    host, pid, since = gone
    return Takeover(f"{host}:{pid}", since, {names[source]: count for source, count in held.items()})
