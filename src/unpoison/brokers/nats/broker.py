"""How does NATS JetStream serve as a broker?

Retries, releases and dead letters are copies that the server has confirmed before the original is acknowledged, and each
acknowledgement is confirmed too. NATS does not ask who acknowledges: so ours are only ever sent for what is done or stored
elsewhere, and whoever held a message for longer than the server has promised takes it for lost.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from unpoison.brokers.nats import copies, envelope
from unpoison.brokers.nats.consuming import ACK, Gone
from unpoison.brokers.nats.depth import depth
from unpoison.brokers.nats.envelope import Receipt, place
from unpoison.brokers.nats.lane import Start
from unpoison.brokers.nats.native import native
from unpoison.brokers.nats.publishing import publish
from unpoison.brokers.nats.session import Session
from unpoison.brokers.nats.source import Source
from unpoison.brokers.nats.url import address
from unpoison.brokers.nats.writing import Copy, stored_as
from unpoison.errors import BrokerUnavailable, OwnershipLost, UnpoisonError
from unpoison.model.message import Delivery, Outgoing
from unpoison.model.wording import counted
from unpoison.port.broker import Capability, Dead, Depth, Finding, Kept, Published, Ring, Settlement
from unpoison.port.lease_keeper import Keeper
from unpoison.port.reading import Unreadable, read_one

GIVE_BACK_AFTER = 2.0
"""Seconds that a message waits here unfetched before others may have it."""


class NATSBroker:
    """One user of the server."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.BROWSE
    native = staticmethod(native)

    def __init__(self, url: str) -> None:
        self.session = Session(address(url), self._wake)
        self._lock = threading.RLock()
        self._ring: Ring = lambda: None
        self._sources: dict[str, Source] = {}
        self._keeper: Keeper | None = None
        self._stored: set[Receipt] = set()
        self._letter_ids: dict[Receipt, str] = {}
        self._published: set[str] = set()

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self.session.create, self.session.is_open = create, True
        self._ring = ring or self._ring
        try:
            findings = [finding for source in sources for finding in self.session.topology().ensure(source)]
        except BaseException:
            self.close()
            raise
        self.session.created.clear()
        return findings

    def inherited_fds(self) -> Sequence[int]:
        return ()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        outcome = publish(self.session, messages)
        if len(outcome.refused) < len(messages):
            self._published |= {message.source for message in messages}
        return outcome

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self._lock:
            if limit <= 0:
                return ()
            known = self._source(source)
            known.verify()
            if known.is_late:
                raise self._told_lost(known)
            if source in self._published:
                self._published.discard(source)
                known.filled.add(known.work)
            try:
                return known.fetch(limit)
            except Gone as gone:
                self.session.remake(source)
                raise BrokerUnavailable(f"{gone} What is missing was made anew: the next try finds it.") from None

    def has_suspect(self, source: str) -> bool:
        with self._lock:
            return self._source(source).lane.has_one()

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self._lock:
            known = self._source(source)
            lane = known.lane
            arrived = lane.take()
            if arrived is None:
                return None
            not_read = partial(envelope.not_read, source, lane.subscription)
            seen = read_one(arrived, lambda each: envelope.look(each.block, place(each.reply)), not_read)
            if isinstance(seen, Unreadable):
                return seen  # it is not started
            try:
                counters = lane.lost(arrived, seen.stamp, seen.counters)
                note = Copy(lane.subject(seen.stamp), b"", msgspec.json.encode(Start(by, time.time())))
                if refused := self.session.store([note]):
                    raise BrokerUnavailable(f"NATS refuses to note a start: {refused[0].text}.")
            except BaseException:
                lane.subscription.forget([arrived.reply])  # it comes back, with a start counted that never was
                raise
            known.came_back.note_suspect(source, seen.counters, counters)
            receipt = Receipt(lane.subscription, arrived.reply, arrived.block)
            return Delivery(receipt, source, seen.id, arrived.body, seen.key, seen.headers, counters)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        with self._lock:
            self._verify()
            gone = [each for each in settlement.gone if _is_held(each)]
            kept = [each for each in settlement.kept if _is_held(each.delivery)]
            dead = [each for each in settlement.dead if _is_held(each.delivery)]
            moved = [*(each.delivery for each in kept), *(each.delivery for each in dead)]
            if moved:
                self._stop_listening(kept)
                self._store(kept, dead)
            self._finish([*gone, *moved])
            letter_ids = [self._letter_ids.pop(each.delivery.receipt, None) for each in dead]
            asked = len(settlement.gone) + len(settlement.kept) + len(settlement.dead)
            if len(gone) + len(moved) < asked:
                raise self._told_lost(*self._late())
            return letter_ids

    def _store(self, kept: Sequence[Kept], dead: Sequence[Dead]) -> None:
        """Have a confirmed copy of each. One that was confirmed before is not sent again."""
        everything: list[Kept | Dead] = [*kept, *dead]
        new = [each for each in everything if each.delivery.receipt not in self._stored]
        answers: dict[int, bytes] = {}
        refused = self.session.store([copies.of(self.session, each) for each in new], answers)
        for number, each in enumerate(new):
            if number not in refused:
                self._stored.add(each.delivery.receipt)
                if isinstance(each, Dead):
                    self._letter_ids[each.delivery.receipt] = f"{each.delivery.source}-{stored_as(answers[number])}"
        for item in kept:
            if item.delivery.source in self._sources and not item.after and not item.counters.alone:
                known = self._sources[item.delivery.source]
                known.filled.add(known.again)
        if refused:
            # What could be stored is let go now and not stored again, whatever becomes of the rest.
            self._finish([each.delivery for each in everything if each.delivery.receipt in self._stored], forget=False)
            why = next(iter(refused.values()))
            what = counted(len(refused), "retry or dead letter", "retries or dead letters")
            raise BrokerUnavailable(f"NATS refuses {what}: {why.text} (code {why.code}).")

    def _stop_listening(self, kept: Sequence[Kept]) -> None:
        """What is handed back is for others: it would come straight to us again while we listen."""
        back = [each for each in kept if not each.after and each.counters.attempts == each.delivery.counters.attempts]
        for source in {each.delivery.source for each in back} & self._sources.keys():
            self._sources[source].again.cancel()

    def _finish(self, deliveries: Iterable[Delivery], *, forget: bool = True) -> None:
        """Let these go, and wait until the server has confirmed it."""
        by_holder: dict[int, list[Receipt]] = {}
        for delivery in deliveries:
            by_holder.setdefault(id(delivery.receipt.holder), []).append(delivery.receipt)
        for receipts in by_holder.values():
            holder = receipts[0].holder
            replies = [receipt.reply for receipt in receipts]
            if not forget:
                holder.tell(replies, ACK)
                continue
            holder.finish(replies)
            self._stored.difference_update(receipts)
            for known in self._sources.values():
                if holder is known.lane.subscription:
                    self._clear(known, receipts)

    def _clear(self, known: Source, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            with suppress(UnpoisonError):  # a note more or less changes nothing
                known.lane.cleared(envelope.look_safely(receipt.block, place(receipt.reply)).stamp)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            self._verify()
            if not all(map(_is_held, deliveries)):
                raise self._told_lost(*self._late())
            for holder in {id(each.receipt.holder): each.receipt.holder for each in deliveries}.values():
                holder.renew()

    def depth(self, source: str) -> Depth:
        with self._lock:
            return depth(self.session.link(), self.session.topic(source))

    def close(self) -> None:
        with self._lock:
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
        with self._lock:
            for known in self._sources.values():
                known.close()
                with suppress(UnpoisonError):
                    self._give_back(known)
                    known.give_up()
            self._sources = {}
            self.session.close()

    def _wake(self) -> None:
        self._ring()

    def _source(self, source: str) -> Source:
        self.session.topic(source)
        if source not in self._sources:
            self._sources[source] = Source(source, self.session, self._wake)
        if self._keeper is None:
            shortest = min(known.ack_wait for known in self._sources.values())
            self._keeper = Keeper(shortest / 4, self._renew, self._look_after)
        return self._sources[source]

    def _renew(self) -> None:
        for known in list(self._sources.values()):
            known.renew()

    def _look_after(self) -> None:
        """Now and then: whether something was held for too long, and whether something waits here that nobody fetches."""
        for known in list(self._sources.values()):
            if known.is_late:
                self._wake()
            if known.is_left_alone(GIVE_BACK_AFTER) and self._lock.acquire(timeout=1.0):
                try:
                    if self._keeper is not None and known.is_left_alone(GIVE_BACK_AFTER):
                        self._give_back(known)
                finally:
                    self._lock.release()

    def _give_back(self, known: Source) -> None:
        """Have others get what waits here, as it was: a plain return would be counted against messages that never started."""
        waiting = known.unfetched()
        self._store([Kept(delivery, delivery.counters) for delivery in waiting], ())
        self._finish(waiting)

    def _verify(self) -> None:
        for known in self._sources.values():
            known.verify()

    def _late(self) -> list[Source]:
        return [known for known in self._sources.values() if known.is_late]

    def _told_lost(self, *lost: Source) -> OwnershipLost:
        """Told once. Its results are dropped, so what is still ours goes back too."""
        for known in lost:
            known.give_up()
        self._stored = {receipt for receipt in self._stored if receipt.holder.holds(receipt.reply)}
        self._letter_ids = {receipt: id_ for receipt, id_ in self._letter_ids.items() if receipt in self._stored}
        return OwnershipLost(
            "This consumer held messages for longer than NATS waits to hear from it (ack_wait), since it was paused or did not "
            "reach the server; or the server was killed and forgot that it had handed them out. Its results are dropped; the "
            "messages are delivered again."
        )


def _is_held(delivery: Delivery) -> bool:
    receipt: Receipt = delivery.receipt
    return bool(receipt.holder.holds(receipt.reply))
