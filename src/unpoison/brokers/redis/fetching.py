"""Fetch messages: new ones from the stream (or the list), and those that wait for another start, by a script.

While messages arrive in full batches, the next batch is read ahead: the server works on it while the consumer works.
"""

import logging
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import redis

from unpoison.brokers.redis import envelope, scripts
from unpoison.brokers.redis.connection import Command, Connection
from unpoison.brokers.redis.envelope import position_of
from unpoison.brokers.redis.errors import explained, word
from unpoison.brokers.redis.owner import Owner
from unpoison.brokers.redis.provisioning import make_group
from unpoison.errors import BrokerUnavailable
from unpoison.model.events import fields
from unpoison.model.message import Delivery
from unpoison.port.broker import Settlement
from unpoison.port.reading import FETCH_BYTES, body_bytes

log = logging.getLogger("unpoison")

READ_AT_ONCE = 32
"""How many entries are read at once unless more are known to be small: Redis has no limit by bytes."""

FULL_BATCH = 64
"""The size of a batch from which the next one is read ahead. With slow handlers, messages must stay free for other consumers."""

MISSED = 10_000
"""How many entries one lost answer may have held: more than any fetch asks for."""


class NotOurs(Exception):
    """Another consumer took over from this owner. `holds`: it was given messages since."""

    def __init__(self, source: str, owner: str, *, holds: bool = True) -> None:
        self.source, self.owner, self.holds = source, owner, holds
        super().__init__(owner)


class Received:
    """What one owner has received of one source.

    An answer can be lost: then the server has handed out messages that this consumer does not know of, and since it is alive no
    other consumer takes them over. So it records what it received, and after a failed fetch gives back the rest.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.is_complete = True
        """False while an answer is outstanding, and after one was lost: the server may have handed out more."""
        self.last = b"0-0"
        """The newest entry received. A group gets entries in order, so those that were missed come after it."""
        self.waiting: set[bytes] = set()
        """Numbers of messages from the waiting ones that are held now."""
        self.stock: list[Delivery] = []
        """Messages read ahead that no fetch has taken yet."""
        self.ahead = 0
        """How many messages were asked for ahead, with the answer not read yet."""

    def add(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in reversed(deliveries):
            if not delivery.receipt.is_waiting:
                self.last = max(self.last, delivery.receipt.no, key=position_of)
                break
        self.waiting.update(delivery.receipt.no for delivery in deliveries if delivery.receipt.is_waiting)
        self.is_complete = True


class Fetcher:
    """Fetches the messages of all sources of one broker connection."""

    def __init__(self, connection: Connection, keys: Mapping[str, Sequence[str]]) -> None:
        self._connection, self._keys = connection, keys
        self._group, self._lists = connection.address.group, connection.address.lists
        self.create = True
        self.paused: set[str] = set()
        """Sources of which nothing is read ahead."""
        self.has_waiting: set[str] = set()
        self._received: dict[str, Received] = {}
        self._flowing: set[str] = set()
        self._at_once: dict[str, int] = {}  # messages that fit into FETCH_BYTES, by the largest of the last batch

    def fetch(self, source: str, owner: Owner, limit: int) -> Sequence[Delivery]:
        received = self._complete_received(source, owner.register())
        if received.stock:
            deliveries, received.stock = received.stock[:limit], received.stock[limit:]
            return deliveries
        received.is_complete = False
        deliveries = self._collect(source, owner, limit)
        received.add(deliveries)
        self._note_flow(source, len(deliveries), limit)
        return deliveries

    def take_alone(self, source: str, owner: str) -> Delivery | None:
        """One suspect. It counts as received only after `mark_received`."""
        self._complete_received(source, owner).is_complete = False
        found = self._take(source, owner, 1, alone=True)
        return found[0] if found else None

    def mark_received(self, source: str, found: Sequence[Delivery]) -> None:
        self._received[source].add(found)

    def settled(self, settlement: Settlement) -> None:
        """These messages are no longer held."""
        for received in self._received.values():
            if received.waiting:
                moved = [kept.delivery for kept in settlement.kept] + [dead.delivery for dead in settlement.dead]
                received.waiting -= {each.receipt.no for each in (*settlement.gone, *moved) if each.receipt.is_waiting}

    def ahead(self, source: str, owner: str, finished: int) -> Sequence[Command]:
        """Commands that read the next batch, to be sent with the end of this one; none unless batches are full.

        `fetch` reads the answers.
        """
        received = self._received.get(source)
        if received is None or received.owner != owner or not received.is_complete or received.stock or finished < FULL_BATCH:
            return ()
        is_plain = source not in self.has_waiting and source not in self._lists and not self._connection.finder.is_cluster
        if source not in self._flowing or source in self.paused or not is_plain:
            return ()
        received.ahead, received.is_complete = min(finished, self._at_once.get(source, READ_AT_ONCE)), False
        return self._reading(source, owner, received.ahead)

    def stock(self, source: str) -> Sequence[Delivery]:
        """Take the messages that were read ahead and not fetched, to give them back."""
        received = self._received.get(source)
        if received is None:
            return ()
        if received.ahead:
            self._read_ahead(source, received)
        back, received.stock = received.stock, []
        return back

    def put_back(self, source: str, deliveries: Sequence[Delivery]) -> None:
        """As if these had not been taken."""
        if deliveries:
            self._received[source].stock = [*deliveries, *self._received[source].stock]

    def _complete_received(self, source: str, owner: str) -> Received:
        """What this owner received, after giving back what it missed."""
        if source not in self._received or self._received[source].owner != owner:
            self._received[source] = Received(owner)
        received = self._received[source]
        if received.ahead:
            self._read_ahead(source, received)
        if not received.is_complete:
            self._give_back_missed(source, received)
        return received

    def _read_ahead(self, source: str, received: Received) -> None:
        """Read the answers of `ahead`. Lost ones are treated like those of any fetch."""
        wanted, received.ahead = received.ahead, 0
        answers = self._connection.late(source)
        if answers:
            deliveries, *_ = self._parse(source, received.owner, *answers)
            received.add(deliveries)
            received.stock = deliveries
            self._note_flow(source, len(deliveries), wanted)

    def _note_flow(self, source: str, got: int, asked: int) -> None:
        (self._flowing.add if got == asked >= FULL_BATCH else self._flowing.discard)(source)

    def _collect(self, source: str, owner: Owner, limit: int) -> list[Delivery]:
        name = owner.name
        deliveries: list[Delivery] = []
        if source in self.has_waiting:
            # Retries and returned messages go first, but take at most half: a flood of them must not starve new ones.
            deliveries = self._take(source, name, max(1, limit // 2))
        position, pause = b"0-0", None
        while len(deliveries) < limit and (room := FETCH_BYTES - body_bytes(deliveries)) > 0:
            wanted = min(limit - len(deliveries), self._at_once.get(source, READ_AT_ONCE))
            answers = self._connection.try_all(source, *self._reading(source, name, wanted, room))
            found, is_more, position, pause = self._parse(source, name, *answers)
            deliveries += found
            if len(found) < wanted and not is_more:
                break
        if len(deliveries) < limit and source in self.has_waiting:
            deliveries += self._take(source, name, limit - len(deliveries))
        if not deliveries:
            owner.arm(position, pause)
        return deliveries

    def _take(self, source: str, owner: str, limit: int, *, alone: bool = False) -> list[Delivery]:
        """Messages that wait for another start."""
        command = scripts.TAKE(self._keys[source], self._group, owner, limit, FETCH_BYTES, int(alone))
        found = self._connection.ask(source, command)[0]
        if found is None:
            raise NotOurs(source, owner)
        return envelope.from_waiting(source, owner, found)

    def _reading(self, source: str, owner: str, limit: int, room: int = FETCH_BYTES) -> tuple[Command, Command]:
        """The commands that read new messages and look for others."""
        look = scripts.LOOK(self._keys[source], self._group, owner, FETCH_BYTES)
        if source in self._lists:
            return scripts.POP(self._keys[source], self._group, owner, limit, room), look
        return ("XREADGROUP", "GROUP", self._group, owner, "COUNT", limit, "STREAMS", source, ">"), look

    def _parse(self, source: str, owner: str, found: Any, looked: Any) -> tuple[list[Delivery], bool, bytes, float | None]:
        """The new messages, whether there are more, the position up to which was read, and seconds until the next is due."""
        for answer in (found, looked):
            if isinstance(answer, Exception):
                self.repair(source, answer)
        is_owner, brought, has_waiting, pause, position, harmless = looked
        if not is_owner:
            raise NotOurs(source, owner, holds=bool(found))
        (self.has_waiting.add if has_waiting else self.has_waiting.discard)(source)
        if source in self._lists:
            deliveries = envelope.from_waiting(source, owner, found or ())
        else:
            deliveries = envelope.from_entries(source, owner, found[0][1]) if found else []
        if deliveries:
            largest = max(map(len, map(attrgetter("body"), deliveries)))
            self._at_once[source] = max(1, min(READ_AT_ONCE, FETCH_BYTES // (largest or 1)), harmless)
        return deliveries, brought > 0, position, None if pause < 0 else pause / 1000

    def repair(self, source: str, error: Exception) -> None:
        """Create the group again if it was destroyed, or the database emptied, while we used it."""
        if isinstance(error, redis.ResponseError) and word(error) == "NOGROUP" and self.create:
            shown, extra = self._connection.address.shown, fields("group-destroyed", source=source)
            log.error("%r: its consumer group was destroyed in %s. Creating it again.", source, shown, extra=extra)
            make_group(self._connection, source, create=True)
            raise BrokerUnavailable(f"Redis at {shown!r}: {error}. Retrying.") from error
        with explained(self._connection.address.shown):
            raise error

    def _give_back_missed(self, source: str, received: Received) -> None:
        """Give back messages of answers that were lost, as they were: no start is counted."""
        if source not in self._lists:
            owner, last = received.owner, received.last
            missed: Command = ("XREADGROUP", "GROUP", self._group, owner, "COUNT", MISSED, "STREAMS", source, last)
            ((_, entries),) = self._connection.ask(source, missed)[0]
            found = envelope.from_entries(source, received.owner, [entry for entry in entries if entry[1] is not None])
            rows = [part for each in found for part in (0, each.receipt.no, 0, 0, "", envelope.blob_of(each))]
            if rows:
                self._connection.ask(source, scripts.KEEP(self._keys[source], self._group, received.owner, *rows))
        self._connection.ask(source, scripts.GIVE_BACK(self._keys[source], self._group, received.owner, *received.waiting))
        self.has_waiting.add(source)
        received.is_complete = True
