"""Redis as a broker.

A source is a stream with a consumer group. A message that waits for another start (a retry, one that a vanished consumer held,
a suspect) is copied out of the stream into keys of the group: trimming the stream cannot remove it there, and other groups do
not see it as a second message. Every change is one script, so it is atomic; each checks first that the messages are still ours.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from unpoison.brokers.redis import envelope, scripts
from unpoison.brokers.redis.connection import Command, Connection
from unpoison.brokers.redis.fetching import Fetcher, NotOurs
from unpoison.brokers.redis.names import DLQ, HELD, OWNERS, keys_of
from unpoison.brokers.redis.owner import Owner, take_over, waits_of
from unpoison.brokers.redis.provisioning import check_kind, make_group, open_source
from unpoison.brokers.redis.publishing import publish
from unpoison.brokers.redis.url import address
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import Delivery, Outgoing
from unpoison.port import broker as port
from unpoison.port.broker import Depth, Finding, Kept, Published, Ring, Settlement, Waits
from unpoison.port.reading import Unreadable
from unpoison.port.serialization import counters_text
from unpoison.port.takeovers import TAKEOVER_EVERY, ownership_lost

SYNC_WITHIN = 2.0
"""Seconds to wait for the disk before a suspect starts, on servers that have WAITAOF."""


class RedisBroker:
    """One connection to the server. A consumer owns its messages until all its processes have ended."""

    native = staticmethod(envelope.native)
    capabilities = port.ALL_CAPABILITIES

    def __init__(self, url: str) -> None:
        self.address = address(url)
        self.connection = Connection(self.address)
        self._create = True
        self._keys: dict[str, tuple[str, ...]] = {}
        self._owners: dict[str, Owner] = {}
        self._opened: set[str] = set()
        self._created: set[str] = set()
        """Sources created by publishing that the caller of `publish` does not know of yet."""
        self._fetcher = Fetcher(self.connection, self._keys)
        self._looked_for_vanished: dict[str, float] = {}
        self._unreturned: set[str] = set()
        """Sources that were to hand back what was read ahead, and did not hear that it is done."""

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self._create = self._fetcher.create = create
        try:
            self.connection.open(sources[0] if sources else "")
            found = [finding for source in sources for finding in self._open(source)]
            if ring is not None:
                for source in sources:
                    self._owner(source).listen(ring)
        except BaseException:
            self.close()
            raise
        return found

    def inherited_fds(self) -> Sequence[int]:
        for source in self._opened:
            self._owner(source).register()
        return [fd for owner in self._owners.values() for fd in owner.inherited_fds()]

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        if missing := port.without_source(messages, self._check):
            return port.all_or_none(messages, missing)
        outcome = publish(self.connection, self._keys, messages)
        created, self._created = self._created, set()
        return msgspec.structs.replace(outcome, created=created) if created else outcome

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        owner = self._owner(source)
        self._take_over_vanished(source)
        if limit < 1:
            return ()
        if source in self._fetcher.paused or source in self._unreturned:
            self._hand_back(source)
        try:
            return self._fetcher.fetch(source, owner, limit)
        except NotOurs as error:
            raise self._lost(source, error.owner, holds=error.holds) from None

    def has_suspect(self, source: str) -> bool:
        return bool(self._ask(source, scripts.SUSPECT(self._keys[source], self.address.group)))

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        owner = self._owner(source).register()
        try:
            suspect = self._fetcher.take_alone(source, owner)
        except NotOurs:
            raise self._lost(source, owner) from None
        if suspect is not None and not isinstance(suspect, Unreadable):  # the consumer does not start one that cannot be read
            self._mark(source, owner, suspect, by)
        self._fetcher.mark_received(source, [] if suspect is None else [suspect])
        return suspect

    def _mark(self, source: str, owner: str, suspect: Delivery, by: str) -> None:
        """Record its start."""
        counters = counters_text(suspect.counters.marked(by, time.time()))  # this host's clock: only people read it
        commands: list[Command] = [scripts.MARK(self._keys[source], self.address.group, owner, suspect.receipt.no, counters)]
        if self.connection.node(source).version >= (7, 2):
            within = min(SYNC_WITHIN, 0.8 * float(self.address.options["socket_timeout"] or SYNC_WITHIN))
            commands.append(("WAITAOF", 1, 0, int(within * 1000)))  # an error where the server has no append-only file
        marked, *_ = self.connection.try_all(source, *commands)
        if isinstance(marked, Exception):
            raise BrokerUnavailable(f"Redis at {self.address.shown!r}: {marked}. The message was not started.") from marked
        if not marked:
            raise self._lost(source, owner)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        lost: list[tuple[str, str]] = []
        numbers: dict[tuple[str, str], Iterator[bytes]] = {}
        for source, owner, command in _commands(settlement, self._keys, self.address.group):
            lost_count = self._run(settlement, source, owner, command)
            if isinstance(lost_count, list):  # followed by the numbers of dead letters
                lost_count, *found = lost_count
                numbers[source, owner] = iter(found)
            if lost_count:
                lost.append((source, owner))
        self._fetcher.settled(settlement)
        if lost:
            raise self._lost(*lost[0])
        holders = [(dead.delivery.source, dead.delivery.receipt.owner) for dead in settlement.dead]
        return [f"{source}-{next(numbers[source, owner]).decode()}" for source, owner in holders]

    def _run(self, settlement: Settlement, source: str, owner: str, command: Command) -> Any:
        """One step of a settlement. After a plain one the server may read the next messages ahead, while we go on."""
        is_plain = not (settlement.kept or settlement.dead)
        ahead = self._fetcher.ahead(source, owner, len(settlement.gone)) if is_plain else ()
        return self.connection.ask_ahead(source, command, *ahead) if ahead else self._ask(source, command)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """There is no lease to renew: the owner's own thread does that. Raises if messages were lost."""
        for (source, owner), batch in _by_owner(deliveries).items():
            entries, waiting = _split(batch)
            commands: list[Command] = [("HEXISTS", self._keys[source][OWNERS], owner)]
            commands += [("XPENDING", source, self.address.group, no, no, 1, owner) for no in entries]
            commands += [("HGET", self._keys[source][HELD], no) for no in waiting]
            if not all(self.connection.ask(source, *commands)):
                raise self._lost(source, owner)

    def pause(self, source: str) -> None:
        self._fetcher.paused.add(source)
        self._hand_back(source)

    def resume(self, source: str) -> None:
        self._fetcher.paused.discard(source)

    def _hand_back(self, source: str) -> None:
        """What was read ahead goes back as it was. If that fails, the next fetch tries it again before it hands out anything: the
        server may have heeded it without an answer."""
        self._unreturned.add(source)
        with suppress(OwnershipLost, NotOurs):  # others have it; who settles what was handed out is told
            back = self._fetcher.stock(source)
            try:
                self.settle(Settlement(kept=[Kept(delivery, delivery.counters) for delivery in back]))
            except BrokerUnavailable:
                self._fetcher.put_back(source, back)
                raise
        self._unreturned.discard(source)

    def depth(self, source: str) -> Depth:
        self._check(source)
        keys = self._keys[source]
        counted, dead = self.connection.try_all(source, scripts.DEPTH(keys, self.address.group), ("XLEN", keys[DLQ]))
        if isinstance(counted, Exception):
            self._fetcher.repair(source, counted)
        ready, delayed, leased = counted
        return Depth(ready=ready, delayed=delayed, leased=leased, dead=dead if isinstance(dead, int) else 0)

    def oldest(self, source: str) -> float | None:
        self._check(source)
        age = self._ask(source, scripts.OLDEST(self._keys[source], self.address.group))
        return None if age < 0 else age / 1000

    def waits(self, source: str) -> Waits:
        self._check(source)
        own = self._owners[source].name if source in self._owners else ""
        return waits_of(self.connection, self._keys[source], own)

    def close(self) -> None:
        for source, owner in self._owners.items():
            if owner.name:
                with suppress(BrokerUnavailable):
                    self._hand_back(source)
                    self._ask(source, scripts.LEAVE(self._keys[source], self.address.group, owner.name))
            owner.close()
        self._owners.clear()
        self._opened.clear()
        self.connection.close()

    def keys(self, source: str, group: str | None = None) -> tuple[str, ...]:
        return keys_of(self.address, source, group or "")

    def _check(self, source: str) -> None:
        """Check a source that was not opened when it is first used: its key may hold something else."""
        if source not in self._keys:
            is_list = source in self.address.lists  # an empty list does not exist as a key
            is_there = check_kind(self.connection, source)
            if not self._create and not is_list:
                make_group(self.connection, source, create=False)
            self._keys[source] = self.keys(source)
            if not is_there and not is_list:
                self._created.add(source)

    def _open(self, source: str) -> Sequence[Finding]:
        found = open_source(self.connection, source, create=self._create)
        self._keys[source] = self.keys(source)
        self._opened.add(source)
        return found

    def _owner(self, source: str) -> Owner:
        if source not in self._opened:
            self._open(source)
        if source not in self._owners:
            self._owners[source] = Owner(self.connection, self._keys[source])
        return self._owners[source]

    def _ask(self, source: str, command: Command) -> Any:
        return self.connection.ask(source, command)[0]

    def _lost(self, source: str, owner: str, *, holds: bool = True) -> OwnershipLost:
        """Everything else that this owner holds is returned too: this consumer no longer waits for it."""
        current = self._owners.get(source)
        if current is not None and current.name == owner:
            if holds:
                self._take_over(source, owner)
            current.lost()
        return ownership_lost(self.address.shown, source)

    def _take_over_vanished(self, source: str) -> None:
        now = time.monotonic()
        if now - self._looked_for_vanished.get(source, float("-inf")) >= TAKEOVER_EVERY:
            self._looked_for_vanished[source] = now
            self._take_over(source)

    def _take_over(self, source: str, from_owner: str = "") -> None:
        if take_over(self.connection, self._keys[source], self._owner(source), from_owner):
            self._fetcher.has_waiting.add(source)


def _commands(settlement: Settlement, keys: Mapping[str, Sequence[str]], group: str) -> Iterator[tuple[str, str, Command]]:
    """The scripts of a settlement, in order, each with its source and owner. Each returns how many messages were lost.

    One script for each kind of verdict, copies first: each message is copied and let go in one step. Nearly always all messages
    are done, and it is one script for the whole batch.
    """
    for (source, owner), rows in _letters(settlement, group).items():
        yield source, owner, scripts.DEAD_LETTER(keys[source], group, owner, *rows)
    for (source, owner), rows in _kept(settlement).items():
        yield source, owner, scripts.KEEP(keys[source], group, owner, *rows)
    for (source, owner), batch in _by_owner(settlement.gone).items():
        entries, waiting = _split(batch)
        yield source, owner, scripts.FINISH(keys[source], group, owner, len(entries), *entries, *waiting)


def _by_owner(deliveries: Sequence[Delivery]) -> dict[tuple[str, str], Sequence[Delivery]]:
    """Nearly always one source and one owner: then nothing is copied."""
    owners = {(delivery.source, delivery.receipt.owner) for delivery in deliveries}
    if len(owners) == 1:
        return {owners.pop(): deliveries}
    return {
        owner: [delivery for delivery in deliveries if (delivery.source, delivery.receipt.owner) == owner] for owner in owners
    }


def _split(deliveries: Sequence[Delivery]) -> tuple[list[bytes], list[bytes]]:
    """Ids of stream entries, and numbers of waiting messages."""
    receipts = [delivery.receipt for delivery in deliveries]
    return [each.no for each in receipts if not each.is_waiting], [each.no for each in receipts if each.is_waiting]


def _letters(settlement: Settlement, group: str) -> dict[tuple[str, str], list[Any]]:
    rows: dict[tuple[str, str], list[Any]] = {}
    for dead in settlement.dead:
        receipt = dead.delivery.receipt
        letter = envelope.fields_of_letter(dead.letter, receipt.fields, group, receipt.no)
        row = [int(receipt.is_waiting), receipt.no, len(letter), *letter]
        rows.setdefault((dead.delivery.source, receipt.owner), []).extend(row)
    return rows


def _kept(settlement: Settlement) -> dict[tuple[str, str], list[Any]]:
    rows: dict[tuple[str, str], list[Any]] = {}
    for kept in settlement.kept:
        receipt = kept.delivery.receipt
        text, blob = counters_text(kept.counters) or "", envelope.blob_of(kept.delivery)
        row = [int(receipt.is_waiting), receipt.no, round(kept.after * 1000), int(kept.counters.alone), text, blob]
        rows.setdefault((kept.delivery.source, receipt.owner), []).extend(row)
    return rows
