"""How many messages of a source are where?"""

from unpoison.brokers.kafka import runs
from unpoison.brokers.kafka.asking import Place
from unpoison.brokers.kafka.names import PARTITIONS, TIERS, Names
from unpoison.brokers.kafka.asking import Asking

DELAYED = frozenset(partition for partition, _ in TIERS)


def unfinished(session: Asking, group: str, places: list[Place]) -> dict[Place, tuple[int, int]]:
    """For each partition: how many messages are not done, and how many of these may have been started."""
    ends, begins = session.ends(places), session.ends(places, first=True)
    committed = session.committed(group, places)
    found = {}
    for place in places:
        offset, metadata = committed.get(place, (begins[place], None))
        state = runs.read(offset, metadata)
        known = sum(begins[place] <= each < ends[place] for each in state.levels)
        behind = max(0, ends[place] - max(state.top, begins[place]))
        found[place] = (known + behind, len(state.started))
    return found


def counts(session: Asking, names: Names, partitions: int) -> tuple[int, int, int]:
    """Ready, delayed, and held by somebody."""
    main = unfinished(session, names.group, [(names.topic, number) for number in range(partitions)])
    retry = unfinished(session, names.retry_group, [(names.retry, number) for number in range(PARTITIONS)])
    delayed = sum(count for (_, number), (count, _) in retry.items() if number in DELAYED)
    leased = sum(started for _, started in (*main.values(), *retry.values()))
    total = sum(count for count, _ in (*main.values(), *retry.values()))
    return max(0, total - delayed - leased), delayed, min(leased, total)
