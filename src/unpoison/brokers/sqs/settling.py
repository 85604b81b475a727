"""How is a settlement carried out, and what if that is interrupted?

Copies first, and deleting last. If it is tried again, a copy that SQS confirmed before is not sent a second time, and what was
deleted is not deleted again.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from unpoison.brokers.sqs import copies
from unpoison.brokers.sqs.envelope import Receipt
from unpoison.brokers.sqs.session import Session
from unpoison.brokers.sqs.source import Source
from unpoison.brokers.sqs.taking import Taking
from unpoison.brokers.sqs.writing import Copy
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Delivery
from unpoison.model.wording import counted
from unpoison.port.broker import Dead, Kept, Settlement


class Settling:
    """The settlements of one user."""

    def __init__(self, session: Session, sources: Mapping[str, Source]) -> None:
        self._session, self._sources = session, sources
        self._stored: set[Receipt] = set()
        self._letter_ids: dict[Receipt, str | None] = {}

    def letter_ids(self, settlement: Settlement) -> list[str | None]:
        """Of the letters that were stored for it. Asked for once it has been carried out."""
        return [self._letter_ids.pop(each.delivery.receipt, None) for each in settlement.dead]

    def carry_out(self, settlement: Settlement) -> bool:
        """False if some of the messages belong to somebody else by now; the others are settled."""
        gone = [each for each in settlement.gone if is_held(each)]
        kept = [each for each in settlement.kept if is_held(each.delivery)]
        dead = [each for each in settlement.dead if is_held(each.delivery)]
        is_whole = (len(gone), len(kept), len(dead)) == (len(settlement.gone), len(settlement.kept), len(settlement.dead))
        if kept:
            self._stop_listening(kept)
            kept = self._give_back_in_place(kept)
        if kept or dead:
            self._store(kept, dead)
        return self._finish([*gone, *(each.delivery for each in kept), *(each.delivery for each in dead)]) and is_whole

    def forget_lost(self) -> None:
        """What was lost is not tried again."""
        self._stored = {receipt for receipt in self._stored if receipt.holder.holds(receipt.handle)}
        self._letter_ids = {receipt: id_ for receipt, id_ in self._letter_ids.items() if receipt in self._stored}

    def _store(self, kept: Sequence[Kept], dead: Sequence[Dead]) -> None:
        """Have a confirmed copy of each. One that was confirmed before is not sent again."""
        everything: list[Kept | Dead] = [*kept, *dead]
        new = [each for each in everything if each.delivery.receipt not in self._stored]
        refused = self._session.store([self._copy(each) for each in new])
        self._stored.update(each.delivery.receipt for number, each in enumerate(new) if number not in refused)
        for source in {each.delivery.source for each in kept} & self._sources.keys():
            self._sources[source].filled = True
            self._sources[source].lane.look_again()
        if refused:
            with suppress(BrokerUnavailable):  # what could be stored is let go now, whatever becomes of the rest
                self._delete([each.delivery for each in everything if each.delivery.receipt in self._stored])
            why = next(iter(refused.values()))
            what = counted(len(refused), "retry or dead letter", "retries or dead letters")
            raise BrokerUnavailable(f"SQS refuses {what}: {why.text} ({why.code}).")

    def _copy(self, item: Kept | Dead) -> Copy:
        topic = self._session.topic(item.delivery.source)
        if isinstance(item, Kept):
            return copies.kept(topic, item)
        copy = copies.letter(topic, item)
        self._letter_ids[item.delivery.receipt] = copy.letter_id
        return copy

    def _stop_listening(self, kept: Sequence[Kept]) -> None:
        """What is handed back is for others: it would come straight to us again while we listen."""
        back = [each for each in kept if not each.after and each.counters.attempts == each.delivery.counters.attempts]
        for source in {each.delivery.source for each in back} & self._sources.keys():
            self._sources[source].work.cancel()

    def _give_back_in_place(self, kept: Sequence[Kept]) -> list[Kept]:
        """What a FIFO queue gets back unchanged returns to where it was: a copy would lose its place. What has no room for its
        counters returns too. Returns the others."""
        others: list[Kept] = []
        back: dict[tuple[Taking, float], list[str]] = {}
        for each in kept:
            receipt: Receipt = each.delivery.receipt
            topic = self._session.topic(each.delivery.source)
            is_unchanged = not each.after and each.counters == each.delivery.counters
            keeps_place = topic.is_fifo and is_unchanged and receipt.holder.url == topic.work
            if keeps_place or not copies.has_room(topic, receipt.raw):
                back.setdefault((receipt.holder, each.after), []).append(receipt.handle)
            else:
                others.append(each)
        for (holder, after), handles in back.items():
            holder.give_back(handles, after)
        return others

    def _finish(self, deliveries: Sequence[Delivery]) -> bool:
        """Let these go for good."""
        is_ours = self._delete(deliveries)
        for group in _by_holder(deliveries):
            group[0].holder.forget([receipt.handle for receipt in group])
            self._stored.difference_update(group)
        return is_ours

    def _delete(self, deliveries: Sequence[Delivery]) -> bool:
        answers = [group[0].holder.finish([receipt.handle for receipt in group]) for group in _by_holder(deliveries)]
        return all(answers)


def _by_holder(deliveries: Iterable[Delivery]) -> list[list[Receipt]]:
    groups: dict[int, list[Receipt]] = {}
    for delivery in deliveries:
        groups.setdefault(id(delivery.receipt.holder), []).append(delivery.receipt)
    return list(groups.values())


def is_held(delivery: Delivery) -> bool:
    receipt: Receipt = delivery.receipt
    return bool(receipt.holder.holds(receipt.handle))
