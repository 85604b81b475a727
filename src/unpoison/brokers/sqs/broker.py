"""SQS as a broker.

Retries, releases and dead letters are copies that SQS has confirmed before the original is deleted. SQS does not ask who deletes.
So we only delete what is done or stored elsewhere, and what we held for longer than SQS has promised counts as lost.
"""

from collections.abc import Sequence
from functools import partial

from unpoison.brokers.sqs.connection import Denied, NoQueue
from unpoison.brokers.sqs.copies import copy_of, has_room, outgoing
from unpoison.brokers.sqs.envelope import native
from unpoison.brokers.sqs.source import Source
from unpoison.brokers.sqs.subscription import Subscription
from unpoison.brokers.sqs.topology import Client, Topic
from unpoison.brokers.sqs.url import address
from unpoison.brokers.sqs.writing import store_in_order, why
from unpoison.model.message import Outgoing
from unpoison.port.broker import Capability, Dead, Depth, Kept, Published
from unpoison.port.copying.leased_broker import LeasedBroker, publish
from unpoison.port.copying.settling import Item, Receipt, Stored

LOST = (
    "This consumer held messages for longer than it had told SQS (visibility={visibility}): it was paused, or did not reach SQS; "
    "or it was for twelve hours, and SQS lets nobody hold a message for longer. Its results are dropped; the messages are "
    "delivered again."
)


class SQSBroker(LeasedBroker[Client, Source]):
    """One user of SQS."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.BROWSE
    native = staticmethod(native)
    gone = (NoQueue,)

    def __init__(self, url: str) -> None:
        where = address(url)
        super().__init__(Client(where), "SQS", LOST.format(visibility=where.visibility))

    def _source(self, name: str) -> Source:
        return Source(self.client.topic(name), self.client, self.wake)

    def _publish(self, messages: Sequence[Outgoing]) -> Published:
        """One request after the other. After one that was not stored nothing more is sent: it would overtake it."""
        return publish(self.client, messages, outgoing, partial(store_in_order, self.client.connection), why, (Denied,))

    def _store(self, items: Sequence[Item]) -> Stored:
        made = [copy_of(self.client.topic(item.delivery.source), item) for item in items]
        refused = self.client.store(made)
        for source in {item.delivery.source for item in items if isinstance(item, Kept)} & self.known.keys():
            self.known[source].has_stored()
        letter_ids = {number: made[number].letter_id for number, item in enumerate(items) if isinstance(item, Dead)}
        return Stored({number: f"{no.text} ({no.code})." for number, no in refused.items()}, letter_ids)

    def _give_back_in_place(self, kept: Sequence[Kept]) -> list[Receipt]:
        """What a FIFO queue gets back unchanged returns to its place, which a copy would lose. So does what has no room for its
        counters. Each time it would count as received once more, so it stays with us while its source is paused."""
        back: dict[tuple[Subscription, float], list[Receipt]] = {}
        staying: list[Receipt] = []
        for each in kept:
            receipt: Receipt = each.delivery.receipt
            topic = self.client.topic(each.delivery.source)
            is_unchanged = not each.after and each.counters == each.delivery.counters
            keeps_place = topic.is_fifo and is_unchanged and receipt.holder.url == topic.work
            if not (keeps_place or not has_room(topic, receipt.envelope)):
                continue
            known = self.known.get(each.delivery.source)
            if is_unchanged and known is not None and known.keep_paused(receipt):
                staying.append(receipt)
            else:
                back.setdefault((receipt.holder, each.after), []).append(receipt)
        for (holder, after), receipts in back.items():
            holder.give_back([receipt.handle for receipt in receipts], after)
        return [*staying, *(receipt for receipts in back.values() for receipt in receipts)]

    def deletes_after(self, source: str) -> float | None:
        """By `MessageRetentionPeriod` of the queues in which its messages wait. SQS always has one."""
        with self._calling(source):
            topic = self.client.topic(source)
            return min(map(self.client.retention, (topic.work, *([topic.later] if topic.later else ()))))

    def depth(self, source: str) -> Depth:
        with self._calling(source):
            known = self.known.get(source)
            return depth(self.client, self.client.topic(source), 0 if known is None else len(known.work.buffer))


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
