"""Settle messages by copies: store the copies, have the server confirm them, and only then let the originals go.

This is the rule on which "nothing is lost" rests, for every broker that cannot move a message in one step. A kill between two of
the steps leaves a message twice, under one id, and never nowhere. If a step fails the consumer settles again: a copy that was
confirmed before is not stored a second time, and an original that was let go before is not asked for again.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import Delivery
from unpoison.model.wording import counted
from unpoison.port.broker import Dead, Kept, Settlement

Item = Kept | Dead
"""A message that is settled by a copy: a retry, a release or a dead letter."""


class Receipt(msgspec.Struct, frozen=True, eq=False):
    """How a message is found again when it is settled: who holds it, by which handle, and the envelope it came in."""

    holder: Any
    """A `Holder`."""
    handle: Any
    envelope: Any = None


class LetGo(NamedTuple):
    """What became of originals that were to be let go, where that is not simply: all are gone."""

    unknown: Sequence[Receipt] = ()
    """The server did not say. They are tried again."""
    lost: Sequence[Receipt] = ()
    """They were not ours any more."""
    error: BrokerUnavailable | None = None
    """Why it is not known of some."""


ALL_LET_GO = LetGo()


class Holder(Protocol):
    """One queue, channel or consumer from which this process has taken messages. Both methods are called with batches."""

    def held(self, receipts: Sequence[Receipt]) -> Sequence[Receipt]:
        """Those of these that are still ours."""

    def let_go(self, receipts: Sequence[Receipt]) -> LetGo:
        """Acknowledge or delete these, and hold them no longer. The server has confirmed it when this returns."""


class Stored(NamedTuple):
    """What became of copies, by their numbers: why some are not stored, and the ids of those that are dead letters."""

    refused: Mapping[int, str] = {}
    letter_ids: Mapping[int, str | None] = {}


class Copies:
    """Stores copies, and remembers which were confirmed until their originals are let go.

    `store` sends copies of these messages and returns once the server has answered for each. `key` tells one message from others.
    """

    def __init__(
        self,
        server: str,
        store: Callable[[Sequence[Item]], Stored],
        key: Callable[[Delivery], Hashable] = lambda delivery: delivery.receipt,
    ) -> None:
        self._server, self._store, self._key = server, store, key
        self._confirmed: dict[Hashable, str | None] = {}
        """By key; of a dead letter its id."""

    def store(self, items: Sequence[Item]) -> None:
        """Have a confirmed copy of each. Raises BrokerUnavailable if one cannot be had; the others are stored then."""
        new = [item for item in items if self._key(item.delivery) not in self._confirmed]
        if not new:
            return
        stored = self._store(new)
        for number, item in enumerate(new):
            if number not in stored.refused:
                self._confirmed[self._key(item.delivery)] = stored.letter_ids.get(number)
        if stored.refused:
            what = counted(len(stored.refused), "retry or dead letter", "retries or dead letters")
            raise BrokerUnavailable(f"{self._server} did not store {what}: {next(iter(stored.refused.values()))}")

    def is_confirmed(self, delivery: Delivery) -> bool:
        return self._key(delivery) in self._confirmed

    def letter_id(self, delivery: Delivery) -> str | None:
        """The id of the dead letter that was stored for this message."""
        return self._confirmed.get(self._key(delivery))

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Their originals are gone, or their settlement is not tried again."""
        if self._confirmed:
            for delivery in deliveries:
                self._confirmed.pop(self._key(delivery), None)

    def keep_only(self, is_ours: Callable[[Any], bool]) -> None:
        """Forget all others: they were lost, and their settlement is not tried again."""
        self._confirmed = {key: id_ for key, id_ in self._confirmed.items() if is_ours(key)}


class Settler:
    """Carries out the settlements of one consumer.

    `lost` makes the error for messages that belong to another consumer by now. `in_place` may give some messages back without a
    copy and returns the receipts of these.
    """

    def __init__(
        self,
        copies: Copies,
        lost: Callable[[], OwnershipLost],
        in_place: Callable[[Sequence[Kept]], Collection[Receipt]] = lambda _: (),
    ) -> None:
        self._copies, self._lost, self._in_place = copies, lost, in_place
        self._let_go_before: set[Receipt] = set()
        """Let go in an earlier try of a settlement that is tried again."""

    def settle(self, settlement: Settlement) -> list[str | None]:
        """As `Broker.settle`: returns the ids of the dead letters, raises OwnershipLost for what is not ours any more."""
        letter_ids, is_whole = self._carry_out(settlement)
        if not is_whole:
            raise self._lost()
        return letter_ids

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Let other consumers have these, as they were. A plain return would be counted against messages that never started."""
        if deliveries:
            self._carry_out(Settlement(kept=[Kept(delivery, delivery.counters) for delivery in deliveries]))

    def holds(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether all of these are still ours."""
        return len(self._held([delivery.receipt for delivery in deliveries])) == len(deliveries)

    def forget_lost(self) -> None:
        """What was lost is not tried again."""
        self._let_go_before.clear()
        self._copies.keep_only(lambda receipt: bool(receipt.holder.held([receipt])))

    def _carry_out(self, settlement: Settlement) -> tuple[list[str | None], bool]:
        gone = [delivery.receipt for delivery in settlement.gone]
        ours = self._held(gone)
        is_whole = len(ours) == len(gone)
        letter_ids: list[str | None] = []
        if settlement.kept or settlement.dead:
            moved, all_ours = self._copied([*settlement.kept, *settlement.dead])
            letter_ids = [self._copies.letter_id(dead.delivery) for dead in settlement.dead]
            ours, is_whole = [*ours, *moved], is_whole and all_ours
        is_whole = self._let_go(ours) and is_whole
        self._end(settlement)
        return letter_ids, is_whole

    def _copied(self, items: Sequence[Item]) -> tuple[list[Receipt], bool]:
        """Have copies of those that are ours. Returns their receipts, and whether all of them are ours."""
        ours = set(self._held([item.delivery.receipt for item in items]))
        left = [item for item in items if item.delivery.receipt in ours and item.delivery.receipt not in self._let_go_before]
        kept = [item for item in left if isinstance(item, Kept)]
        given_back = set(self._in_place(kept)) if kept else set()
        self._let_go_before |= given_back
        left = [item for item in left if item.delivery.receipt not in given_back] if given_back else left
        try:
            self._copies.store(left)
        except BrokerUnavailable:
            self._let_go_early([item.delivery.receipt for item in left if self._copies.is_confirmed(item.delivery)])
            raise
        return [item.delivery.receipt for item in left], len(ours) == len(items)

    def _held(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Those that are ours: held, or let go in an earlier try."""
        before = self._let_go_before
        found = [receipt for receipt in receipts if receipt in before] if before else []
        for holder, group in by_holder([receipt for receipt in receipts if receipt not in before] if found else receipts):
            found += holder.held(group)
        return found

    def _let_go(self, receipts: Sequence[Receipt]) -> bool:
        """False if some were not ours any more. Raises if it is not known of some; what is gone is not asked for again then."""
        before = self._let_go_before
        gone: list[Receipt] = []
        error: BrokerUnavailable | None = None
        is_whole = True
        for holder, group in by_holder([receipt for receipt in receipts if receipt not in before] if before else receipts):
            try:
                outcome = holder.let_go(group)
            except BrokerUnavailable as raised:
                error = raised
                break
            unknown = set(outcome.unknown)
            gone += [receipt for receipt in group if receipt not in unknown] if unknown else group
            error = error or outcome.error
            is_whole = is_whole and not outcome.lost
        if error is not None:
            before.update(gone)
            raise error
        return is_whole

    def _let_go_early(self, receipts: Sequence[Receipt]) -> None:
        """Let go what could be stored: it is not stored again, whatever becomes of the rest."""
        with suppress(BrokerUnavailable):
            self._let_go(receipts)
            self._let_go_before.update(receipts)

    def _end(self, settlement: Settlement) -> None:
        """It is not tried again."""
        moved = [*(kept.delivery for kept in settlement.kept), *(dead.delivery for dead in settlement.dead)]
        self._copies.forget(moved)
        if self._let_go_before:
            self._let_go_before.difference_update([delivery.receipt for delivery in (*settlement.gone, *moved)])


def by_holder(receipts: Iterable[Receipt]) -> list[tuple[Holder, list[Receipt]]]:
    """Receipts by who holds them. Nearly always that is one."""
    groups: dict[int, list[Receipt]] = {}
    last: object = None
    group: list[Receipt] = []
    for receipt in receipts:
        if receipt.holder is not last:
            last = receipt.holder
            group = groups.setdefault(id(last), [])
        group.append(receipt)
    return [(group[0].holder, group) for group in groups.values()]


def handed_back(kept: Iterable[Kept]) -> set[str]:
    """The sources that get messages back unstarted. While a consumer listens there it would get them again itself."""
    return {each.delivery.source for each in kept if not each.after and each.counters.attempts == each.delivery.counters.attempts}
