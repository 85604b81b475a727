"""How does SQS serve as a broker?

Retries, releases and dead letters are copies that SQS has confirmed before the original is deleted. SQS does not ask who deletes:
so we only delete what is done or stored elsewhere, and whoever held a message for longer than SQS has promised takes it for lost.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from unpoison.brokers.sqs.client import NoQueue
from unpoison.brokers.sqs.depth import depth
from unpoison.brokers.sqs.envelope import Receipt
from unpoison.brokers.sqs.native import native
from unpoison.brokers.sqs.publishing import publish
from unpoison.brokers.sqs.session import Session
from unpoison.brokers.sqs.settling import Settling, is_held
from unpoison.brokers.sqs.source import Source
from unpoison.brokers.sqs.url import address
from unpoison.errors import BrokerUnavailable, OwnershipLost, UnpoisonError
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Capability, Depth, Finding, Kept, Published, Ring, Settlement
from unpoison.port.lease_keeper import Keeper

GIVE_BACK_AFTER = 2.0
"""Seconds that a message waits here unfetched before others may have it."""


class SQSBroker:
    """One user of SQS."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.BROWSE
    native = staticmethod(native)

    def __init__(self, url: str) -> None:
        self.session = Session(address(url))
        self._lock = threading.RLock()
        self._ring: Ring = lambda: None
        self._sources: dict[str, Source] = {}
        self._keeper: Keeper | None = None
        self._settling = Settling(self.session, self._sources)

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self.session.open(create=create)
        self._ring = ring or self._ring
        try:
            findings = [finding for source in sources for finding in self.session.ensure(source)]
        except BaseException:
            self.close()
            raise
        self.session.created.clear()
        return findings

    def inherited_fds(self) -> Sequence[int]:
        return ()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        outcome = publish(self.session, messages)
        for source in {message.source for message in messages} & self._sources.keys():
            self._sources[source].filled |= len(outcome.refused) < len(messages)
        return outcome

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self._lock:
            if limit <= 0:
                return ()
            known = self._source(source)
            if known.is_late:
                raise self._told_lost(known)
            with self._made_anew(source):
                return known.fetch(limit)

    @contextmanager
    def _made_anew(self, *sources: str) -> Iterator[None]:
        """If somebody deleted a queue in the meantime. It has the same address then, so whoever uses it can go on."""
        try:
            yield
        except NoQueue as gone:
            for source in sources:
                self.session.remake(source)
            raise BrokerUnavailable(f"{gone} What is missing was made anew: the next try finds it.") from None

    def has_suspect(self, source: str) -> bool:
        with self._lock, self._made_anew(source):
            return self._source(source).lane.has_one()

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self._lock, self._made_anew(source):
            known = self._source(source)
            taken = known.take_suspect()
            if not isinstance(taken, tuple):
                return taken
            lane, (raw, seen) = known.lane, taken
            try:
                counters = lane.lost(raw, seen.stamp, seen.counters)
                if refused := self.session.store([lane.note(seen.stamp, by)]):
                    raise BrokerUnavailable(f"SQS refuses to note a start: {refused[0].text}.")
            except BaseException:
                lane.taking.forget([raw["ReceiptHandle"]])  # it comes back, with a start counted that never was
                raise
            known.came_back.note_suspect(source, seen.counters, counters)
            receipt = Receipt(lane.taking, raw["ReceiptHandle"], raw)
            return Delivery(receipt, source, seen.id, seen.body, seen.key, seen.headers, counters)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        with self._lock, self._made_anew(*self._sources):
            if not self._settling.carry_out(settlement):
                raise self._told_lost(*(known for known in self._sources.values() if known.is_late))
            return self._settling.letter_ids(settlement)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            if not all(map(is_held, deliveries)):
                raise self._told_lost(*(known for known in self._sources.values() if known.is_late))
            for holder in {id(each.receipt.holder): each.receipt.holder for each in deliveries}.values():
                holder.renew()

    def depth(self, source: str) -> Depth:
        with self._lock, self._made_anew(source):
            known = self._sources.get(source)
            return depth(self.session, self.session.topic(source), 0 if known is None else len(known.work.buffer))

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
            self._sources.clear()
            self.session.close()

    def _source(self, source: str) -> Source:
        topic = self.session.topic(source)
        if source not in self._sources:
            self._sources[source] = Source(topic, self.session, self._wake)
        if self._keeper is None:
            self._keeper = Keeper(self.session.address.visibility / 4, self._renew, self._look_after)
        return self._sources[source]

    def _wake(self) -> None:
        self._ring()

    def _renew(self) -> None:
        for known in list(self._sources.values()):
            known.renew()

    def _look_after(self) -> None:
        """Now and then: whether something was held for too long, and whether something waits here that nobody fetches."""
        for known in list(self._sources.values()):
            if known.is_late:
                self._wake()
            # Whoever has the lock is at work; waiting for it would keep us from renewing.
            if known.is_left_alone(GIVE_BACK_AFTER) and self._lock.acquire(blocking=False):
                try:
                    if self._keeper is not None and known.is_left_alone(GIVE_BACK_AFTER):
                        self._give_back(known)
                finally:
                    self._lock.release()

    def _give_back(self, known: Source) -> None:
        """Have others get what waits here, as it was: a plain return would be counted against messages that never started."""
        known.work.cancel()
        while known.work.buffer:
            waiting = known.unfetched()
            self._settling.carry_out(Settlement(kept=[Kept(delivery, delivery.counters) for delivery in waiting]))
        known.mover.give_back()

    def _told_lost(self, *lost: Source) -> OwnershipLost:
        """Told once. Its results are dropped, so what is still ours goes back too."""
        for known in lost:
            with suppress(UnpoisonError):
                known.give_up()
        self._settling.forget_lost()
        return OwnershipLost(
            f"This consumer held messages for longer than it had told SQS (visibility={self.session.address.visibility}): it was "
            f"paused, or did not reach SQS; or it was for twelve hours, which is as long as SQS lets anybody hold one. Its "
            f"results are dropped; the messages are delivered again."
        )
