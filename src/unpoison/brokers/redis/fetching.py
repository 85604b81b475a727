"""How do messages come to a consumer?

New ones are read from the stream (or popped from the list), those that wait for another start are handed out by a script. While
much flows, the next ones are read ahead: the server works on them while the consumer works on what it has.
"""

import logging
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import redis

from unpoison.brokers.redis import envelope, scripts
from unpoison.brokers.redis.connection import Command, Connection
from unpoison.brokers.redis.errors import explained, word
from unpoison.brokers.redis.owner import Owner
from unpoison.brokers.redis.topology import make_group
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Delivery

# What has this consumer really got?
#
# An answer can be lost on its way: then the server has handed out messages that nobody here knows of, and since this consumer
# is alive nobody would ever take them over. So it notes what has reached it, and after a fetch that failed asks for the rest.


class Received:
    """What one owner has got of one source."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.is_sure = True
        """False from the moment something is asked for until it has come: whether it was handed out is not known then."""
        self.last = b"0-0"
        """The newest entry that has come. A group is given entries in their order, so what was missed lies behind it."""
        self.waiting: set[bytes] = set()
        """The numbers of those that waited and are here now."""
        self.stock: list[Delivery] = []
        """What was read ahead and nobody has asked for yet."""
        self.ahead = 0
        """How many the server was asked for ahead, and its answer was not looked at yet."""

    def got(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in reversed(deliveries):
            if not delivery.receipt.is_waiting:
                self.last = max(self.last, delivery.receipt.no, key=_sortable)
                break
        self.waiting.update(delivery.receipt.no for delivery in deliveries if delivery.receipt.is_waiting)
        self.is_sure = True


def _sortable(no: bytes) -> tuple[int, int]:
    first, _, second = no.partition(b"-")
    return int(first), int(second)


# (the part that gave this module its question)


log = logging.getLogger("unpoison")

FETCH_BYTES = 64 * 1024 * 1024
"""A fetch ends early once it has read this much: a limit by count alone lets large bodies fill the memory."""

READ_AT_ONCE = 32
"""How many are read in one go unless it is known that more do no harm: Redis cannot be told how many bytes to read at most."""

FLOW = 64
"""From so many messages at a time on, the next ones are read ahead: slow handlers must not keep messages from others."""

MISSED = 10_000
"""How many entries may have been missed at once: more than any fetch asks for."""


class NotOurs(Exception):
    """This owner is none any more: its messages were taken over. `holds` says whether it was given more since."""

    def __init__(self, source: str, owner: str, *, holds: bool = True) -> None:
        self.source, self.owner, self.holds = source, owner, holds
        super().__init__(owner)


class Fetcher:
    """What comes in over one broker connection, for all its sources."""

    def __init__(self, link: Connection, keys: Mapping[str, Sequence[str]]) -> None:
        self._link, self._keys = link, keys
        self._group, self._lists = link.finder.address.group, link.finder.address.lists
        self.create = True
        self.has_waiting: set[str] = set()
        self._hands: dict[str, Received] = {}
        self._flowing: set[str] = set()
        self._at_once: dict[str, int] = {}  # how many messages of a source fit into FETCH_BYTES, by the largest seen last

    def fetch(self, source: str, presence: Owner, limit: int) -> Sequence[Delivery]:
        hand = self._sure_hand(source, presence.own())
        if hand.stock:
            deliveries, hand.stock = hand.stock[:limit], hand.stock[limit:]
            return deliveries
        hand.is_sure = False
        deliveries = self._collect(source, presence, limit)
        hand.got(deliveries)
        self._note_flow(source, len(deliveries), limit)
        return deliveries

    def take_alone(self, source: str, owner: str) -> Delivery | None:
        """One that must run alone. It is in hand only once `mark_got` was called."""
        self._sure_hand(source, owner).is_sure = False
        found = self._take(source, owner, 1, alone=True)
        return found[0] if found else None

    def mark_got(self, source: str, found: Sequence[Delivery]) -> None:
        self._hands[source].got(found)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """These are not in hand any more."""
        for hand in self._hands.values():
            if hand.waiting:
                hand.waiting -= {delivery.receipt.no for delivery in deliveries if delivery.receipt.is_waiting}

    def ahead(self, source: str, owner: str, finished: int) -> Sequence[Command]:
        """What the server can be asked together with the end of so many messages, if much flows. `fetch` gets the answers."""
        hand = self._hands.get(source)
        if hand is None or hand.owner != owner or not hand.is_sure or hand.stock or finished < FLOW:
            return ()
        if source not in self._flowing or source in self.has_waiting or source in self._lists or self._link.finder.is_cluster:
            return ()
        hand.ahead, hand.is_sure = min(finished, self._at_once.get(source, READ_AT_ONCE)), False
        return self._reading(source, owner, hand.ahead)

    def stock(self, source: str) -> Sequence[Delivery]:
        """What was read ahead and nobody has fetched: it is handed over, to be given back."""
        hand = self._hands.get(source)
        if hand is None:
            return ()
        if hand.ahead:
            self._receive(source, hand)
        back, hand.stock = hand.stock, []
        return back

    def _sure_hand(self, source: str, owner: str) -> Received:
        """This owner's hand, with everything in it that was handed out."""
        if source not in self._hands or self._hands[source].owner != owner:
            self._hands[source] = Received(owner)
        hand = self._hands[source]
        if hand.ahead:
            self._receive(source, hand)
        if not hand.is_sure:
            self._give_back_what_never_came(source, hand)
        return hand

    def _receive(self, source: str, hand: Received) -> None:
        """What was read ahead. Answers that were lost are asked for again, like those to any fetch."""
        wanted, hand.ahead = hand.ahead, 0
        answers = self._link.late(source)
        if answers:
            deliveries, *_ = self._understood(source, hand.owner, *answers)
            hand.got(deliveries)
            hand.stock = deliveries
            self._note_flow(source, len(deliveries), wanted)

    def _note_flow(self, source: str, got: int, asked: int) -> None:
        (self._flowing.add if got == asked >= FLOW else self._flowing.discard)(source)

    def _collect(self, source: str, presence: Owner, limit: int) -> list[Delivery]:
        owner = presence.name
        deliveries: list[Delivery] = []
        if source in self.has_waiting:
            # Retries and returns go first, but to no more than half: a flood of them must not starve new messages.
            deliveries = self._take(source, owner, max(1, limit // 2))
        position, pause = b"0-0", None
        while len(deliveries) < limit and (room := FETCH_BYTES - _weight(deliveries)) > 0:
            wanted = min(limit - len(deliveries), self._at_once.get(source, READ_AT_ONCE))
            answers = self._link.try_all(source, *self._reading(source, owner, wanted, room))
            found, is_more, position, pause = self._understood(source, owner, *answers)
            deliveries += found
            if len(found) < wanted and not is_more:
                break
        if len(deliveries) < limit and source in self.has_waiting:
            deliveries += self._take(source, owner, limit - len(deliveries))
        if not deliveries:
            presence.arm(position, pause)
        return deliveries

    def _take(self, source: str, owner: str, limit: int, *, alone: bool = False) -> list[Delivery]:
        """Some of those that wait for another start."""
        command = scripts.TAKE(self._keys[source], self._group, owner, limit, FETCH_BYTES, int(alone))
        found = self._link.ask(source, command)[0]
        if found is None:
            raise NotOurs(source, owner)
        return envelope.from_waiting(source, owner, found)

    def _reading(self, source: str, owner: str, limit: int, room: int = FETCH_BYTES) -> tuple[Command, Command]:
        """How the next new ones are read, and what is asked right after that."""
        look = scripts.LOOK(self._keys[source], self._group, owner, FETCH_BYTES)
        if source in self._lists:
            return scripts.POP(self._keys[source], self._group, owner, limit, room), look
        return ("XREADGROUP", "GROUP", self._group, owner, "COUNT", limit, "STREAMS", source, ">"), look

    def _understood(self, source: str, owner: str, found: Any, looked: Any) -> tuple[list[Delivery], bool, bytes, float | None]:
        """The new ones; whether there are more right now; up to where was read; and when the next one is due."""
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
        """Somebody destroyed the group, or emptied the database, while we used it: make anew what was there."""
        if isinstance(error, redis.ResponseError) and word(error) == "NOGROUP" and self.create:
            shown, extra = self._link.finder.address.shown, {"event": "group-destroyed", "source": source}
            log.error("The group of source %r was destroyed in %s. It is made anew.", source, shown, extra=extra)
            make_group(self._link, source, create=True)
            raise BrokerUnavailable(f"Redis at {shown!r}: {error}. It is tried again.") from error
        with explained(self._link.finder.address.shown):
            raise error

    def _give_back_what_never_came(self, source: str, hand: Received) -> None:
        """Handed out in an answer that was lost on its way: it goes back as it was, uncounted."""
        if source not in self._lists:
            missed: Command = ("XREADGROUP", "GROUP", self._group, hand.owner, "COUNT", MISSED, "STREAMS", source, hand.last)
            ((_, entries),) = self._link.ask(source, missed)[0]
            found = envelope.from_entries(source, hand.owner, [entry for entry in entries if entry[1] is not None])
            rows = [part for each in found for part in (0, each.receipt.no, 0, 0, "", envelope.blob_of(each))]
            if rows:
                self._link.ask(source, scripts.KEEP(self._keys[source], self._group, hand.owner, *rows))
        self._link.ask(source, scripts.UNHAND(self._keys[source], self._group, hand.owner, *hand.waiting))
        self.has_waiting.add(source)
        hand.is_sure = True


def _weight(deliveries: Sequence[Delivery]) -> int:
    return sum(map(len, map(attrgetter("body"), deliveries)))
