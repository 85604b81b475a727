"""How much of the retry topic is done with, and how far can it be cut without losing anything?

Nothing there expires, since a retry may wait for any time. Below what its group has committed everything is done; only a letter
that was too large for the DLQ may still have its body there.
"""

import json
from collections.abc import Iterator, Mapping

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.asking import Place
from unpoison.brokers.kafka.books import DEAD
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.envelope import BODY_AT
from unpoison.brokers.kafka.names import LANE, REPLAYS, Names
from unpoison.model.wording import counted
from unpoison.port.broker import Finding

NAMES = ("settled-retries",)
MANY = 1_000_000


def of_retries(broker: KafkaBroker, names: Names, partitions: int) -> Iterator[Finding]:
    """Those in which a replay that was cut off is looked for are left alone; there are few in them."""
    places = [(names.retry, number) for number in range(partitions) if number not in (LANE, REPLAYS)]
    begins = broker.session.ends(places, first=True)
    # Asked before the DLQ is read: what was done by then has its letter there already.
    committed = {place: offset for place, (offset, _) in broker.session.committed(names.retry_group, places).items()}
    if sum(max(0, offset - begins[place]) for place, offset in committed.items()) < MANY:
        return
    needed = _bodies(broker, names)
    cuts = {place: min(offset, needed.get(place, offset)) for place, offset in committed.items()}
    count = sum(max(0, offset - begins[place]) for place, offset in cuts.items())
    yield Finding(
        "settled-retries",
        f"Topic {names.retry!r} keeps {counted(count, 'record')} of messages that are done: that costs space and nothing else.",
        f"kafka-delete-records.sh --offset-json-file cut.json, with this in cut.json: {_told(cuts, begins)}",
    )


def _bodies(broker: KafkaBroker, names: Names) -> dict[Place, int]:
    """The first offset in each partition at which the body of a letter that waits is."""
    found: dict[Place, int] = {}
    waiting = {(entry.place, entry.offset) for entry in broker.books(names.source).entries.values() if entry.state == DEAD}
    stretches = {place: (min(at), max(at) + 1) for place in {place for place, _ in waiting} if (at := _of(waiting, place))}
    for record in broker.reader.read(stretches):
        where = envelope.field(record, BODY_AT)
        if where is None or ((record.topic(), record.partition()), record.offset()) not in waiting:
            continue
        topic, partition, offset = where.rsplit("/", 2)
        place = (topic, int(partition))
        found[place] = min(int(offset), found.get(place, int(offset)))
    return found


def _of(waiting: set[tuple[Place, int]], place: Place) -> list[int]:
    return [offset for known, offset in waiting if known == place]


def _told(cuts: Mapping[Place, int], begins: Mapping[Place, int]) -> str:
    partitions = [
        {"topic": topic, "partition": number, "offset": offset}
        for (topic, number), offset in sorted(cuts.items())
        if offset > begins[topic, number]
    ]
    return json.dumps({"partitions": partitions, "version": 1})
