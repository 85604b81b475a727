"""SQS as a broker.

Retries, releases and dead letters are copies that SQS has confirmed before the original is deleted. SQS does not ask who deletes.
So we only delete what is done or stored elsewhere, and what we held for longer than SQS has promised counts as lost.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from unpoison.brokers.sqs import publishing
from unpoison.brokers.sqs.client import Client
from unpoison.brokers.sqs.connection import NoQueue
from unpoison.brokers.sqs.envelope import native
from unpoison.brokers.sqs.source import Source
from unpoison.brokers.sqs.subscription import Subscription
from unpoison.brokers.sqs.topology import Topic
from unpoison.brokers.sqs.url import address
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Capability, Dead, Depth, Finding, Kept, Published, Ring, Settlement
from unpoison.port.copying.leases import LeasedSources
from unpoison.port.copying.settling import Copies, Item, Receipt, Stored

LOST = (
    "This consumer held messages for longer than it had told SQS (visibility={visibility}): it was paused, or did not reach SQS; "
    "or it was for twelve hours, and SQS lets nobody hold a message for longer. Its results are dropped; the messages are "
    "delivered again."
)


class SQSBroker:
    """One user of SQS."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.BROWSE
    native = staticmethod(native)

    def __init__(self, url: str) -> None:
        self.client = Client(address(url))
        lost = LOST.format(visibility=self.client.address.visibility)
        self.sources = LeasedSources(self._source, Copies("SQS", self._store), lost, self._give_back_in_place)

    def _source(self, name: str) -> Source:
        return Source(self.client.topic(name), self.client, self.sources.wake)

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self.client.open(create=create)
        self.sources.ring = ring or self.sources.ring
        try:
            findings = [finding for source in sources for finding in self.client.ensure(source)]
        except BaseException:
            self.close()
            raise
        self.client.created.clear()
        return findings

    def inherited_fds(self) -> Sequence[int]:
        return ()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        outcome = publishing.publish(self.client, messages)
        for source in {message.source for message in messages} & self.sources.known.keys():
            self.sources.known[source].filled |= len(outcome.refused) < len(messages)
        return outcome

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self.sources.lock:
            if limit <= 0:
                return ()
            self.client.topic(source)
            known = self.sources.to_fetch(source)
            with self._remade(source):
                return known.fetch(limit)

    @contextmanager
    def _remade(self, *sources: str) -> Iterator[None]:
        """Create a queue again that was deleted meanwhile. It has the same URL then, so everything else goes on."""
        try:
            yield
        except NoQueue as gone:
            for source in sources:
                self.client.remake(source)
            raise BrokerUnavailable(f"{gone} It was created again: the next try finds it.") from None

    def has_suspect(self, source: str) -> bool:
        with self.sources.lock, self._remade(source):
            return self.sources.source(source).suspects.has_one()

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self.sources.lock, self._remade(source):
            return self.sources.source(source).take_suspect(by)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        with self.sources.lock, self._remade(*self.sources.known):
            return self.sources.settle(settlement)

    def _store(self, items: Sequence[Item]) -> Stored:
        """Copies of these, for the kit."""
        made = [publishing.copy_of(self.client.topic(item.delivery.source), item) for item in items]
        refused = self.client.store(made)
        for source in {item.delivery.source for item in items if isinstance(item, Kept)} & self.sources.known.keys():
            self.sources.known[source].filled = True
            self.sources.known[source].suspects.look_again()
        letter_ids = {number: made[number].letter_id for number, item in enumerate(items) if isinstance(item, Dead)}
        return Stored({number: f"{no.text} ({no.code})." for number, no in refused.items()}, letter_ids)

    def _give_back_in_place(self, kept: Sequence[Kept]) -> list[Receipt]:
        """What a FIFO queue gets back unchanged returns to its place, which a copy would lose. So does what has no room for its
        counters."""
        back: dict[tuple[Subscription, float], list[Receipt]] = {}
        for each in kept:
            receipt: Receipt = each.delivery.receipt
            topic = self.client.topic(each.delivery.source)
            is_unchanged = not each.after and each.counters == each.delivery.counters
            keeps_place = topic.is_fifo and is_unchanged and receipt.holder.url == topic.work
            if keeps_place or not publishing.has_room(topic, receipt.envelope):
                back.setdefault((receipt.holder, each.after), []).append(receipt)
        for (holder, after), receipts in back.items():
            holder.give_back([receipt.handle for receipt in receipts], after)
        return [receipt for receipts in back.values() for receipt in receipts]

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self.sources.lock:
            self.sources.extend(deliveries)

    def depth(self, source: str) -> Depth:
        with self.sources.lock, self._remade(source):
            known = self.sources.known.get(source)
            return depth(self.client, self.client.topic(source), 0 if known is None else len(known.work.buffer))

    def close(self) -> None:
        self.sources.close()
        with self.sources.lock:
            self.client.close()


def depth(client: Client, topic: Topic, waiting_here: int) -> Depth:
    """How many messages of a source are where.

    SQS counts approximately, and one queue at a time. Messages move from the replays to the source, and from there to those that
    must run alone: counted in this order, one that moves meanwhile is seen at least once. Those of a FIFO source also go to where
    they wait, and come back: so its queues are counted before that and after it.
    """
    queues = [topic.replays, topic.work, topic.suspects]
    if topic.later is not None:
        queues += [topic.later, topic.work, topic.suspects]
    counted: dict[str, tuple[int, ...]] = {}
    for url in queues:
        counts = client.counts(url)
        counted[url] = tuple(map(max, counts, counted.get(url, counts)))
    ready, delayed, leased = map(sum, zip(*(counts for url, counts in counted.items() if url != topic.later), strict=True))
    if topic.later is not None:
        delayed += sum(counted[topic.later])
    dead, _, looked_at = client.counts(topic.dlq)
    return Depth(ready + waiting_here, delayed, max(0, leased - waiting_here), dead + looked_at)
