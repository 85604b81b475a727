"""How does Redis serve as a broker?

A source is a stream with a consumer group. What waits for another start (a retry, what a vanished consumer held, what must run
alone) is copied out of the stream into keys of the group's own: whatever trims the stream cannot touch it, and other groups do
not see it as a second message. Every change is a script, so it is one step; each asks first whether the messages are still ours.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from unpoison.brokers.redis import envelope, scripts
from unpoison.brokers.redis.connection import Command, Connection
from unpoison.brokers.redis.envelope import fields_of_letter, native
from unpoison.brokers.redis.fetching import Fetcher, NotOurs
from unpoison.brokers.redis.names import DLQ, HELD, OWNERS, keys_of
from unpoison.brokers.redis.owner import Owner, take_over, waits_of
from unpoison.brokers.redis.publishing import publish
from unpoison.brokers.redis.topology import check_kind, make_group, open_source
from unpoison.brokers.redis.url import address
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Capability, Depth, Finding, Kept, Published, Ring, Settlement, Waits, all_or_none, without_source
from unpoison.port.reading import Unreadable
from unpoison.port.serialization import counters_text

# How is a settlement told to the server?
#
# One script for each kind of verdict, copies first: each message is copied and let go in one step. Nearly always there is one
# script for the whole batch, since nearly all messages are done.


def commands(settlement: Settlement, keys: Mapping[str, Sequence[str]], group: str) -> Iterator[tuple[str, str, Command]]:
    """What to run, one after the other, with the source and the owner it is about. Each tells how many messages were lost."""
    for (source, owner), rows in _letters(settlement, group).items():
        yield source, owner, scripts.BURY(keys[source], group, owner, *rows)
    for (source, owner), rows in _kept(settlement).items():
        yield source, owner, scripts.KEEP(keys[source], group, owner, *rows)
    for (source, owner), batch in by_owner(settlement.gone).items():
        entries, waiting = split(batch)
        yield source, owner, scripts.GONE(keys[source], group, owner, len(entries), *entries, *waiting)


def moved(settlement: Settlement) -> Iterator[Delivery]:
    """Every message that a settlement is about."""
    yield from settlement.gone
    yield from (kept.delivery for kept in settlement.kept)
    yield from (dead.delivery for dead in settlement.dead)


def by_owner(deliveries: Sequence[Delivery]) -> dict[tuple[str, str], Sequence[Delivery]]:
    """Nearly always all of one source and one owner: then nothing is copied."""
    owners = {(delivery.source, delivery.receipt.owner) for delivery in deliveries}
    if len(owners) == 1:
        return {owners.pop(): deliveries}
    return {
        owner: [delivery for delivery in deliveries if (delivery.source, delivery.receipt.owner) == owner] for owner in owners
    }


def split(deliveries: Sequence[Delivery]) -> tuple[list[bytes], list[bytes]]:
    """Entries of the stream, and numbers of those that wait."""
    receipts = [delivery.receipt for delivery in deliveries]
    return [each.no for each in receipts if not each.is_waiting], [each.no for each in receipts if each.is_waiting]


def _letters(settlement: Settlement, group: str) -> dict[tuple[str, str], list[Any]]:
    rows: dict[tuple[str, str], list[Any]] = {}
    for dead in settlement.dead:
        receipt = dead.delivery.receipt
        letter = fields_of_letter(dead.letter, receipt.fields, group, receipt.no)
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


# (the part that gave this module its question)


TAKEOVER_EVERY = 0.5
"""Seconds between two looks for consumers that vanished."""

SYNC_WITHIN = 2.0
"""Seconds to wait for the disk before a message runs alone, on servers that can say when it has it."""


class RedisBroker:
    """One consumer's, or publisher's, way to the server. Ownership ends with the processes that hold it."""

    native = staticmethod(native)
    capabilities = (
        Capability.DURABLE
        | Capability.SHARED
        | Capability.FENCED
        | Capability.ATOMIC
        | Capability.BROWSE
        | Capability.EXACT_DEPTH
    )

    def __init__(self, url: str) -> None:
        self.address = address(url)
        self.link = Connection(self.address)
        self._create = True
        self._keys: dict[str, tuple[str, ...]] = {}
        self._presences: dict[str, Owner] = {}
        self._opened: set[str] = set()
        self._created: set[str] = set()
        """Sources that were not there when something was first published to them, until that was said."""
        self._fetching = Fetcher(self.link, self._keys)
        self._looked_for_vanished: dict[str, float] = {}

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self._create = self._fetching.create = create
        try:
            self.link.open(sources[0] if sources else "")
            found = [finding for source in sources for finding in self._open(source)]
            if ring is not None:
                for source in sources:
                    self._presence(source).listen(ring)
        except BaseException:
            self.close()
            raise
        return found

    def inherited_fds(self) -> Sequence[int]:
        for source in self._opened:
            self._presence(source).own()
        return [fd for presence in self._presences.values() for fd in presence.inherited_fds()]

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        if missing := without_source(messages, self._check):
            return all_or_none(messages, missing)
        outcome = publish(self.link, self._keys, messages)
        created, self._created = self._created, set()
        return msgspec.structs.replace(outcome, created=created) if created else outcome

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        presence = self._presence(source)
        self._take_over_from_the_vanished(source)
        if limit < 1:
            return ()
        try:
            return self._fetching.fetch(source, presence, limit)
        except NotOurs as error:
            raise self._lost(source, error.owner, holds=error.holds) from None

    def has_suspect(self, source: str) -> bool:
        return bool(self._ask(source, scripts.SUSPECT(self._keys[source], self.address.group)))

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        owner = self._presence(source).own()
        try:
            suspect = self._fetching.take_alone(source, owner)
        except NotOurs:
            raise self._lost(source, owner) from None
        if suspect is not None and not isinstance(suspect, Unreadable):  # one that cannot be read is not started
            self._mark(source, owner, suspect, by)
        self._fetching.mark_got(source, [] if suspect is None else [suspect])
        return suspect

    def _mark(self, source: str, owner: str, suspect: Delivery, by: str) -> None:
        """Put its start on record."""
        counters = counters_text(suspect.counters.marked(by, time.time()))  # when, as this host says: for people only
        commands: list[Command] = [scripts.MARK(self._keys[source], self.address.group, owner, suspect.receipt.no, counters)]
        if self.link.node(source).version >= (7, 2):
            within = min(SYNC_WITHIN, 0.8 * float(self.address.options["socket_timeout"] or SYNC_WITHIN))
            commands.append(("WAITAOF", 1, 0, int(within * 1000)))  # an error where there is no such file to wait for
        marked, *_ = self.link.try_all(source, *commands)
        if isinstance(marked, Exception):
            raise BrokerUnavailable(f"Redis at {self.address.shown!r}: {marked}. The message was not started.") from marked
        if not marked:
            raise self._lost(source, owner)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        lost: list[tuple[str, str]] = []
        numbers: dict[tuple[str, str], Iterator[bytes]] = {}
        for source, owner, command in commands(settlement, self._keys, self.address.group):
            told = self._run(settlement, source, owner, command)
            if isinstance(told, list):  # of dead letters, with their numbers
                told, *found = told
                numbers[source, owner] = iter(found)
            if told:
                lost.append((source, owner))
        self._fetching.settled(list(moved(settlement)) if settlement.kept or settlement.dead else settlement.gone)
        if lost:
            raise self._lost(*lost[0])
        places = [(dead.delivery.source, dead.delivery.receipt.owner) for dead in settlement.dead]
        return [f"{source}-{next(numbers[source, owner]).decode()}" for source, owner in places]

    def _run(self, settlement: Settlement, source: str, owner: str, command: Command) -> Any:
        """One step of a settlement. The last one may have the server read the next messages: it does so while we go on."""
        is_plain = not (settlement.kept or settlement.dead)
        ahead = self._fetching.ahead(source, owner, len(settlement.gone)) if is_plain else ()
        return self.link.ask_ahead(source, command, *ahead) if ahead else self._ask(source, command)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to prolong: this consumer says by itself that it is alive. Only tells when something was lost."""
        for (source, owner), batch in by_owner(deliveries).items():
            entries, waiting = split(batch)
            commands: list[Command] = [("HEXISTS", self._keys[source][OWNERS], owner)]
            commands += [("XPENDING", source, self.address.group, no, no, 1, owner) for no in entries]
            commands += [("HGET", self._keys[source][HELD], no) for no in waiting]
            if not all(self.link.ask(source, *commands)):
                raise self._lost(source, owner)

    def depth(self, source: str) -> Depth:
        self._check(source)
        keys = self._keys[source]
        counted, dead = self.link.try_all(source, scripts.DEPTH(keys, self.address.group), ("XLEN", keys[DLQ]))
        if isinstance(counted, Exception):
            self._fetching.repair(source, counted)
        ready, delayed, leased = counted
        return Depth(ready=ready, delayed=delayed, leased=leased, dead=dead if isinstance(dead, int) else 0)

    def waits(self, source: str) -> Waits:
        self._check(source)
        keys = self._keys[source]
        own = self._presences[source].name if source in self._presences else ""
        return waits_of(self.link, keys, self.address.group, own)

    def close(self) -> None:
        for source, presence in self._presences.items():
            if presence.name:
                with suppress(BrokerUnavailable, OwnershipLost, NotOurs):
                    back = [Kept(delivery, delivery.counters) for delivery in self._fetching.stock(source)]
                    self.settle(Settlement(kept=back))
                    self._ask(source, scripts.LEAVE(self._keys[source], self.address.group, presence.name))
            presence.close()
        self._presences.clear()
        self._opened.clear()
        self.link.close()

    def keys(self, source: str, group: str | None = None) -> tuple[str, ...]:
        return keys_of(source, group or self.address.group)

    def _check(self, source: str) -> None:
        """A source that was not opened is looked at when it is first used: its key may be something else."""
        if source not in self._keys:
            is_list = source in self.address.lists  # then the URL knows it, and an empty list is no key
            is_there = check_kind(self.link, source, is_list=is_list)
            if not self._create and not is_list:
                make_group(self.link, source, create=False)
            self._keys[source] = self.keys(source)
            if not is_there and not is_list:
                self._created.add(source)

    def _open(self, source: str) -> Sequence[Finding]:
        found = open_source(self.link, source, create=self._create, is_list=source in self.address.lists)
        self._keys[source] = self.keys(source)
        self._opened.add(source)
        return found

    def _presence(self, source: str) -> Owner:
        if source not in self._opened:
            self._open(source)
        if source not in self._presences:
            is_list = source in self.address.lists
            self._presences[source] = Owner(self.link.finder, self.link, self._keys[source], is_list=is_list)
        return self._presences[source]

    def _ask(self, source: str, command: Command) -> Any:
        return self.link.ask(source, command)[0]

    def _lost(self, source: str, owner: str, *, holds: bool = True) -> OwnershipLost:
        """What is held under the name that lost something comes back too: nobody waits for it here any more."""
        presence = self._presences.get(source)
        if presence is not None and presence.name == owner:
            if holds:
                self._inherit(source, owner)
            presence.lost()
        return OwnershipLost(
            f"Messages of {source!r} that this consumer held in {self.address.shown!r} were taken over by another one. "
            f"Its results are dropped; the messages run there."
        )

    def _take_over_from_the_vanished(self, source: str) -> None:
        now = time.monotonic()
        if now - self._looked_for_vanished.get(source, float("-inf")) >= TAKEOVER_EVERY:
            self._looked_for_vanished[source] = now
            self._inherit(source)

    def _inherit(self, source: str, from_owner: str = "") -> None:
        if take_over(self.link, self._keys[source], self._presence(source), from_owner):
            self._fetching.has_waiting.add(source)
