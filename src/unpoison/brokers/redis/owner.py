"""How does a consumer show that it is there, and how does it hear of new messages?

By a subscription: a connection that is subscribed to a channel with the name of this owner. The server forgets it at once when
the last process that has the connection's socket is gone, and workers inherit it. Every few seconds the owner also says until
when it is to be taken for alive, by the server's clock; that counts where the subscription cannot: when the network or the host
is gone without a word, after the server was started again, and for users who may not subscribe.

A second connection waits for new entries of the stream, and looks from time to time for delays that are over.
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
from unpoison.brokers.redis.connection import Connection, Finder, Node
from unpoison.brokers.redis.errors import explained
from unpoison.brokers.redis.names import ALONE, HELD, LATER, WAITING, owner_channel
from unpoison.errors import UnpoisonError
from unpoison.model.wording import counted
from unpoison.port.broker import Ring, Waits
from unpoison.port.takeovers import tell

LEASE = 30.0
"""Seconds after which a consumer that says nothing, and whose subscription says nothing either, is taken for gone."""

LOOK_EVERY = 0.5
"""Seconds between two looks for delays that are over and consumers that vanished. New entries are told at once."""

LOOK_EVERY_LIST = 0.1
"""As LOOK_EVERY, for a list: of new ones in it nobody can be told without taking them."""

RECOVERY = 1.0
"""Seconds before a lost connection is made again."""


class Owner:
    """This consumer at one source: its name as an owner, and its ear."""

    def __init__(self, finder: Finder, link: Connection, keys: Sequence[str], *, is_list: bool = False) -> None:
        self._finder, self._link, self._keys, self._source = finder, link, keys, keys[0]
        self._shown, self._group = finder.address.shown, finder.address.group
        self._is_list = is_list
        self.name = ""
        self._since = 0.0
        self._ring: Ring = lambda: None
        self._guard = threading.RLock()
        self._subscription: Node | None = None
        self._ear: Node | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._is_armed = False
        self._position, self._looks_at, self._beats_at = b"$", 0.0, 0.0
        self._hang_up, self._wake = -1, -1

    def listen(self, ring: Ring) -> None:
        """From now on ring when there may be something new."""
        self._ring = ring
        self._start()

    def own(self) -> str:
        """This consumer's name as an owner; it becomes one when first asked."""
        if not self.name:
            self._start()
            with self._guard, explained(self._shown):
                name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
                self._subscribe(name)
                self._appear(name, is_new=True)
                self.name = name
            self._nudge()  # it waits for something else as long as there is no owner
        return self.name

    @property
    def run(self) -> str:
        """The run of the server, as it is now."""
        return self._link.node(self._source).run

    def inherited_fds(self) -> Sequence[int]:
        """The socket that is subscribed: while a process has a copy of it, the server keeps the subscription."""
        with self._guard:
            return () if self._subscription is None or self._subscription.fileno() < 0 else (self._subscription.fileno(),)

    def arm(self, position: bytes, pause: float | None) -> None:
        """Called when a fetch found nothing: ring at the next entry behind `position`, or when something is due, in `pause`."""
        longest = LOOK_EVERY_LIST if self._is_list else LOOK_EVERY
        looks_at = time.monotonic() + (longest if pause is None else min(longest, pause))
        if not self._is_armed:
            self._position, self._looks_at, self._is_armed = position, looks_at, True
            self._nudge()

    def lost(self) -> None:
        """Somebody took over what this owner held. The next fetch makes a new one."""
        with self._guard:
            self.name = ""
            if self._subscription is not None:
                self._subscription.close()
                self._subscription = None

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._nudge()
            self._thread.join(timeout=5)
            self._thread = None
            os.close(self._hang_up)
            os.close(self._wake)
        with self._guard:
            for node in (self._subscription, self._ear):
                if node is not None:
                    node.close()
            self._subscription = self._ear = None
        self.name = ""

    def _start(self) -> None:
        if self._thread is None:
            self._closed.clear()
            self._hang_up, self._wake = os.pipe()
            os.set_blocking(self._hang_up, False)
            os.set_blocking(self._wake, False)
            self._thread = threading.Thread(target=self._live, name="unpoison-redis-presence", daemon=True)
            self._thread.start()

    def _nudge(self) -> None:
        with suppress(BlockingIOError):  # nudged often enough already
            os.write(self._wake, b"x")

    def _subscribe(self, name: str) -> None:
        """Not at any price: a user may have no right to. Then only what the owner says counts."""
        node = self._finder.connect(self._source)
        self._subscription = node
        answer = node.ask([("SUBSCRIBE", owner_channel(name))])[0]
        if isinstance(answer, redis.ResponseError):
            node.close()
            self._subscription = None

    def _appear(self, name: str, *, is_new: bool = False) -> bool:
        """Say that this owner is alive. False if it is none any more."""
        if is_new:
            self._since = time.time()
        who = f"{socket.gethostname()} {os.getpid()} {self._since:.0f}"
        command = scripts.APPEAR(self._keys, self._group, name, int(LEASE * 1000), self.run, who, int(is_new))
        self._beats_at = time.monotonic() + LEASE / 3
        return bool(self._link.ask(self._source, command)[0])

    def _live(self) -> None:
        while not self._closed.is_set():
            try:
                with explained(self._shown):
                    self._round()
            except UnpoisonError:
                self._forget_ear()
                self._tell()  # the next fetch finds out what is the matter
                self._closed.wait(RECOVERY)

    def _round(self) -> None:
        """One wait, for whatever comes first: an entry, a moment, or a word from this consumer."""
        if self.name and time.monotonic() >= self._beats_at:
            self._beat()
        until = min(self._beats_at if self.name else float("inf"), self._looks_at if self._is_armed else float("inf"))
        pause = max(0.001, min(LEASE, until - time.monotonic()))
        if not self._is_armed:
            self._wait(None, pause)
            return
        ear = self._connected()
        if self._is_list:
            self._wait(None, pause)
        else:
            ear.send([("XREAD", "COUNT", 1, "BLOCK", int(pause * 1000) + 1, "STREAMS", self._source, self._position)])
            if not self._wait(ear, pause + LEASE):
                self._forget_ear()  # an answer that comes later would be taken for that to another question
                return
            if ear.answer():
                self._tell()
                return
        if time.monotonic() >= self._looks_at:
            self._look(ear)

    def _beat(self) -> None:
        with self._guard:
            if self.name:
                if self._subscription is not None and self._subscription.fileno() < 0:
                    self._subscribe(self.name)
                if not self._appear(self.name):
                    self._tell()  # taken over: the next fetch finds that out

    def _look(self, ear: Node) -> None:
        command = scripts.NEWS(self._keys, self._group, self.name, ear.run, int(LEASE * 1000))
        self._looks_at = time.monotonic() + (LOOK_EVERY_LIST if self._is_list else LOOK_EVERY)
        answer = ear.ask([command])[0]
        if isinstance(answer, redis.exceptions.NoScriptError):
            ear.ask([("SCRIPT", "LOAD", scripts.NEWS.text)])
            answer = ear.ask([command])[0]
        if isinstance(answer, Exception):
            raise answer
        if answer:
            self._tell()

    def _connected(self) -> Node:
        if self._ear is None:
            self._ear = self._finder.connect(self._source)
        return self._ear

    def _forget_ear(self) -> None:
        if self._ear is not None:
            self._ear.close()
            self._ear = None
        self._finder.forget()

    def _wait(self, ear: Node | None, pause: float) -> bool:
        """Until there is an answer (True), a nudge, news of the subscription, or so long."""
        waiting = select.poll()
        waiting.register(self._hang_up, select.POLLIN)
        subscription = self._subscription
        subscribed = -1 if subscription is None else subscription.fileno()
        if subscribed >= 0:
            waiting.register(subscribed, select.POLLIN)
        if ear is not None:
            waiting.register(ear.fileno(), select.POLLIN)
        while True:
            ready = {fd for fd, _ in waiting.poll(pause * 1000 + 1)}
            if self._hang_up in ready:
                with suppress(BlockingIOError):
                    os.read(self._hang_up, 4096)
            if subscription is not None and subscribed in ready:
                waiting.unregister(subscribed)  # or what was cut would wake it again and again
                self._hear(subscription)
                subscription = None
            if ear is None or self._closed.is_set() or not ready or ear.fileno() in ready:
                return ear is not None and ear.fileno() in ready

    def _hear(self, subscription: Node) -> None:
        """Nothing is ever said there: if it can be read, it was cut. It is made again; in time, if nobody looks meanwhile."""
        with self._guard:
            if subscription is self._subscription:
                try:
                    subscription.answer()
                except (redis.RedisError, OSError):
                    subscription.close()
                self._beats_at = 0.0

    def _tell(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self._ring()


# What happens to the messages of a consumer that vanished?
#
# They come back as *returned*: whether they had been started is not known. That is counted, and the counting is part of the
# step.


log = logging.getLogger("unpoison")


def take_over(link: Connection, keys: Sequence[str], me: Owner, from_owner: str = "") -> int:
    """Give back what vanished consumers held, or this one, whatever it says. Returns how many messages came back."""
    source, silence = keys[0], int(LEASE * 1000)
    command = scripts.INHERIT(keys, link.finder.address.group, me.name, me.run, silence, from_owner)
    came_back = 0
    for name, said, taken, trimmed in link.ask(source, command)[0]:
        came_back += taken
        if taken and not from_owner:  # else it is this consumer itself that has lost them
            tell(source, taken, shown(name), _since(said))
        if trimmed:
            log.error(
                "Source %r: %s that %s held had been trimmed from the stream while it was being handled: lost, unless it had "
                "been finished. Remove MAXLEN from what writes to the stream. (Came back: %s.)",
                source, counted(trimmed, "message"), name.decode(errors="backslashreplace"), counted(taken, "other message"),
                extra={"event": "trimmed", "source": source},
            )  # fmt: skip
    return came_back


def shown(name: bytes) -> str:
    """An owner as people know it: host:pid. A consumer that is none of ours has the name that it gave itself."""
    host, pid, own = (["", "", *name.decode(errors="backslashreplace").rsplit("-", 2)])[-3:]
    return f"{host}:{pid}" if host and pid.isdigit() else f"{host}-{pid}-{own}".lstrip("-")


def _since(said: bytes) -> float | None:
    """Since when an owner had been there, from what it said last (lua/appear.lua). Others say nothing."""
    words = said.split()
    return float(words[5]) if len(words) == 6 and words[5].isdigit() else None


# When is the next message of a source due, and who holds some?


def waits_of(link: Connection, keys: Sequence[str], group: str, but_owner: str) -> Waits:
    source = keys[0]
    first = [("ZRANGE", keys[each], 0, 0, "WITHSCORES") for each in (WAITING, ALONE, LATER)]
    *soonest, held, pending, moment = link.try_all(source, *first, ("HVALS", keys[HELD]), ("XPENDING", source, group), ("TIME",))
    now = float(moment[0])
    dues = [float(found[1]) / 1000 for found in soonest if not isinstance(found, Exception) and found]
    names = {name.removeprefix(b"!") for name in held} if not isinstance(held, Exception) else set()
    if not isinstance(pending, Exception):  # a list has no group
        names |= {name for name, _ in pending[3] or ()}
    holders = tuple(sorted(shown(name) for name in names - {but_owner.encode()}))
    return Waits(min((due for due in dues if due > now), default=None), holders)
