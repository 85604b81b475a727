"""Owners: which consumer holds which messages, whether its processes are alive, and what happens when they are not.

An owner subscribes to a channel with its name. Workers inherit the socket, and the server drops the subscription as soon as the
last process with that socket has ended. The owner's thread also renews a lease, by the server's clock; it counts where the
subscription cannot: when the network or the host fails silently, after a restart of the server, and for users who may not
subscribe. A second connection waits for new entries of the stream, and looks regularly for due messages.
"""

import logging
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress

import redis

from unpoison.brokers.redis import scripts
from unpoison.brokers.redis.connection import Connection, Node
from unpoison.brokers.redis.errors import explained
from unpoison.brokers.redis.names import ALONE, HELD, LATER, WAITING, owner_channel
from unpoison.errors import UnpoisonError
from unpoison.model.events import fields
from unpoison.model.wording import counted
from unpoison.port.broker import Ring, Waits
from unpoison.port.takeovers import tell

LEASE = 30.0
"""Seconds without a renewal after which a consumer is taken for gone, if its subscription says nothing either."""

LOOK_EVERY = 0.5
"""Seconds between two looks for due messages and vanished consumers. New entries are noticed at once."""

LOOK_EVERY_LIST = 0.1
"""The same for a list: Redis cannot wait for a list without taking from it."""

RECOVERY = 1.0
"""Seconds before reconnecting."""


class Owner:
    """This consumer as an owner of messages of one source, and the connections that keep it alive and listen."""

    def __init__(self, connection: Connection, keys: Sequence[str]) -> None:
        self._connection, self._finder, self._keys, self._source = connection, connection.finder, keys, keys[0]
        self._shown, self._group = connection.address.shown, connection.address.group
        self._is_list = self._source in connection.address.lists
        self.name = ""
        self._since = 0.0
        self._ring: Ring = lambda: None
        self._guard = threading.RLock()
        self._subscription: Node | None = None
        self._listener: Node | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._is_armed = False
        self._position, self._looks_at, self._renew_at = b"$", 0.0, 0.0
        self._wake_reader, self._wake_writer = -1, -1

    def listen(self, ring: Ring) -> None:
        """From now on ring when the source may have new messages."""
        self._ring = ring
        self._start()

    def register(self) -> str:
        """Become an owner, unless it is one. Returns its name."""
        if not self.name:
            self._start()
            with self._guard, explained(self._shown):
                name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
                self._subscribe(name)
                self._renew(name, is_new=True)
                self.name = name
            self._wake()  # the thread has a lease to renew now
        return self.name

    @property
    def run(self) -> str:
        """The run id of the server, as it is now."""
        return self._connection.node(self._source).run

    def inherited_fds(self) -> Sequence[int]:
        """The socket of the subscription. While any process holds a copy, the server keeps the subscription."""
        with self._guard:
            return () if self._subscription is None or self._subscription.fileno() < 0 else (self._subscription.fileno(),)

    def arm(self, position: bytes, pause: float | None) -> None:
        """A fetch found nothing: ring at the next entry after `position`, or in `pause` seconds, when a message is due."""
        longest = LOOK_EVERY_LIST if self._is_list else LOOK_EVERY
        looks_at = time.monotonic() + (longest if pause is None else min(longest, pause))
        if not self._is_armed:
            self._position, self._looks_at, self._is_armed = position, looks_at, True
            self._wake()

    def lost(self) -> None:
        """Another consumer took over what this owner held. The next fetch registers a new one."""
        with self._guard:
            self.name = ""
            if self._subscription is not None:
                self._subscription.close()
                self._subscription = None

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._wake()
            self._thread.join(timeout=5)
            self._thread = None
            os.close(self._wake_reader)
            os.close(self._wake_writer)
        with self._guard:
            for node in (self._subscription, self._listener):
                if node is not None:
                    node.close()
            self._subscription = self._listener = None
        self.name = ""

    def _start(self) -> None:
        if self._thread is None:
            self._closed.clear()
            self._wake_reader, self._wake_writer = os.pipe()
            os.set_blocking(self._wake_reader, False)
            os.set_blocking(self._wake_writer, False)
            self._thread = threading.Thread(target=self._run, name="unpoison-redis-owner", daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full: the thread wakes anyway
            os.write(self._wake_writer, b"x")

    def _subscribe(self, name: str) -> None:
        """A user may have no permission to: then only the lease counts."""
        node = self._finder.connect(self._source)
        self._subscription = node
        answer = node.ask([("SUBSCRIBE", owner_channel(name))])[0]
        if isinstance(answer, redis.ResponseError):
            node.close()
            self._subscription = None

    def _renew(self, name: str, *, is_new: bool = False) -> bool:
        """Renew the lease. False if another consumer took over."""
        if is_new:
            self._since = time.time()
        who = f"{socket.gethostname()} {os.getpid()} {self._since:.0f}"
        command = scripts.RENEW(self._keys, self._group, name, int(LEASE * 1000), self.run, who, int(is_new))
        self._renew_at = time.monotonic() + LEASE / 3
        return bool(self._connection.ask(self._source, command)[0])

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with explained(self._shown):
                    self._round()
            except UnpoisonError:
                self._drop_listener()
                self._notify()  # the next fetch meets the error and reports it
                self._closed.wait(RECOVERY)

    def _round(self) -> None:
        """Wait for whatever comes first: a new entry, a due time, or a call of this consumer."""
        if self.name and time.monotonic() >= self._renew_at:
            self._renew_lease()
        until = min(self._renew_at if self.name else float("inf"), self._looks_at if self._is_armed else float("inf"))
        pause = max(0.001, min(LEASE, until - time.monotonic()))
        if not self._is_armed:
            self._wait(None, pause)
            return
        listener = self._connected()
        if self._is_list:
            self._wait(None, pause)
        else:
            listener.send([("XREAD", "COUNT", 1, "BLOCK", int(pause * 1000) + 1, "STREAMS", self._source, self._position)])
            if not self._wait(listener, pause + LEASE):
                self._drop_listener()  # a late answer would be taken for the answer to the next command
                return
            if listener.answer():
                self._notify()
                return
        if time.monotonic() >= self._looks_at:
            self._look(listener)

    def _renew_lease(self) -> None:
        with self._guard:
            if self.name:
                if self._subscription is not None and self._subscription.fileno() < 0:
                    self._subscribe(self.name)
                if not self._renew(self.name):
                    self._notify()  # taken over: the next fetch finds that out

    def _look(self, listener: Node) -> None:
        command = scripts.NEWS(self._keys, self._group, self.name, listener.run, int(LEASE * 1000))
        self._looks_at = time.monotonic() + (LOOK_EVERY_LIST if self._is_list else LOOK_EVERY)
        answer = listener.ask([command])[0]
        if isinstance(answer, redis.exceptions.NoScriptError):
            listener.ask([("SCRIPT", "LOAD", scripts.NEWS.text)])
            answer = listener.ask([command])[0]
        if isinstance(answer, Exception):
            raise answer
        if answer:
            self._notify()

    def _connected(self) -> Node:
        if self._listener is None:
            self._listener = self._finder.connect(self._source)
        return self._listener

    def _drop_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._finder.forget()

    def _wait(self, listener: Node | None, pause: float) -> bool:
        """Wait for an answer (True), a wake-up or an event on the subscription, at most `pause` seconds."""
        waiting = select.poll()
        waiting.register(self._wake_reader, select.POLLIN)
        subscription = self._subscription
        subscribed = -1 if subscription is None else subscription.fileno()
        if subscribed >= 0:
            waiting.register(subscribed, select.POLLIN)
        if listener is not None:
            waiting.register(listener.fileno(), select.POLLIN)
        while True:
            ready = {fd for fd, _ in waiting.poll(pause * 1000 + 1)}
            if self._wake_reader in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake_reader, 4096)
            if subscription is not None and subscribed in ready:
                waiting.unregister(subscribed)  # a broken connection stays readable and would wake it for ever
                self._on_subscription(subscription)
                subscription = None
            if listener is None or self._closed.is_set() or not ready or listener.fileno() in ready:
                return listener is not None and listener.fileno() in ready

    def _on_subscription(self, subscription: Node) -> None:
        """No message is ever published there: if the socket is readable, it broke. The next renewal subscribes again."""
        with self._guard:
            if subscription is self._subscription:
                try:
                    subscription.answer()
                except (redis.RedisError, OSError):
                    subscription.close()
                self._renew_at = 0.0

    def _notify(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self._ring()


log = logging.getLogger("unpoison")


def take_over(connection: Connection, keys: Sequence[str], me: Owner, from_owner: str = "") -> int:
    """Return what vanished consumers held to the source, or what `from_owner` holds. Returns how many messages came back.

    Whether they had been started is not known. The script counts that, so the counting is part of the same step.
    """
    source, silence = keys[0], int(LEASE * 1000)
    command = scripts.TAKE_OVER(keys, connection.address.group, me.name, me.run, silence, from_owner)
    came_back = 0
    for name, said, taken, trimmed in connection.ask(source, command)[0]:
        came_back += taken
        if taken and not from_owner:  # otherwise this consumer itself has lost them
            tell(source, taken, shown(name), _since(said))
        if trimmed:
            log.error(
                "Source %r: %s that %s held had been trimmed from the stream while it was being handled: lost, unless it had "
                "been finished. Remove MAXLEN from what writes to the stream. (Came back: %s.)",
                source, counted(trimmed, "message"), name.decode(errors="backslashreplace"), counted(taken, "other message"),
                extra=fields("trimmed", source=source, count=trimmed),
            )  # fmt: skip
    return came_back


def shown(name: bytes) -> str:
    """An owner as host:pid. A consumer of another program is shown by its own name."""
    host, pid, own = (["", "", *name.decode(errors="backslashreplace").rsplit("-", 2)])[-3:]
    return f"{host}:{pid}" if host and pid.isdigit() else f"{host}-{pid}-{own}".lstrip("-")


def _since(said: bytes) -> float | None:
    """When an owner registered, from its last renewal (lua/renew.lua). Consumers of other programs do not say."""
    words = said.split()
    return float(words[5]) if len(words) == 6 and words[5].isdigit() else None


def waits_of(connection: Connection, keys: Sequence[str], but_owner: str) -> Waits:
    """When the next delayed message is due, and which other consumers hold messages of the source."""
    source, group = keys[0], connection.address.group
    first = [("ZRANGE", keys[each], 0, 0, "WITHSCORES") for each in (WAITING, ALONE, LATER)]
    *soonest, held, pending, moment = connection.try_all(
        source, *first, ("HVALS", keys[HELD]), ("XPENDING", source, group), ("TIME",)
    )
    now = float(moment[0])
    dues = [float(found[1]) / 1000 for found in soonest if not isinstance(found, Exception) and found]
    names = {name.removeprefix(b"!") for name in held} if not isinstance(held, Exception) else set()
    if not isinstance(pending, Exception):  # a list has no group
        names |= {name for name, _ in pending[3] or ()}
    holders = tuple(sorted(shown(name) for name in names - {but_owner.encode()}))
    return Waits(min((due for due in dues if due > now), default=None), holders)
