"""How is a settlement told to the server?

One script for each kind of verdict, copies first: each message is copied and let go in one step. Nearly always there is one
script for the whole batch, since nearly all messages are done.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unpoison.brokers.redis import envelope, scripts
from unpoison.brokers.redis.letters import fields_of_letter
from unpoison.brokers.redis.nodes import Command
from unpoison.model.message import Delivery
from unpoison.port.broker import Settlement
from unpoison.port.serialization import counters_text


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
