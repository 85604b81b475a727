"""A fetch takes what fits, in order, and keeps account of it."""

from itertools import pairwise

from hypothesis import given as for_all
from hypothesis import strategies as some

from tests.unit.sqlite_files import opened, query
from unpoison.brokers.sqlite import rows
from unpoison.brokers.sqlite.owner import Leases, ranges
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import Depth, Kept, Settlement
from unpoison.testing import given


def test_a_fetch_ends_early_when_it_has_read_enough_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "FETCH_BYTES", 1000)
    broker = opened(tmp_path / "shop.db", "orders")
    broker.publish([Outgoing(str(n), "orders", bytes(300)) for n in range(10)])
    batches = [[int(delivery.id) for delivery in broker.fetch("orders", 100)] for _ in range(4)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]
    assert broker.depth("orders") == Depth(leased=10)
    broker.close()


def test_a_message_larger_than_the_budget_is_still_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "FETCH_BYTES", 1000)
    broker = opened(tmp_path / "shop.db", "orders")
    broker.publish([Outgoing("big", "orders", bytes(5000)), Outgoing("small", "orders", b"")])
    assert [[delivery.id for delivery in broker.fetch("orders", 10)] for _ in range(2)] == [["big"], ["small"]]
    broker.close()


def test_the_budget_holds_for_retries_and_new_messages_together(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "FETCH_BYTES", 1000)
    broker = opened(tmp_path / "shop.db", "orders")
    broker.publish([Outgoing(str(n), "orders", bytes(300)) for n in range(4)])
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1)) for delivery in broker.fetch("orders", 100)]))
    broker.publish([Outgoing(str(n), "orders", bytes(300)) for n in range(4, 20)])
    assert len(broker.fetch("orders", 100)) <= 5
    broker.close()


def test_what_is_published_goes_behind_all_that_was_handed_out_whatever_of_it_is_left(tmp_path):
    broker = opened(tmp_path / "shop.db", "orders", "others")
    broker.publish([*given.messages("orders", 4), *given.messages("others", 4)])
    held, done = broker.fetch("orders", 2), broker.fetch("orders", 2)
    broker.settle(Settlement(done))
    broker.publish(given.messages("orders", 1, first=4))
    assert broker.depth("orders") == Depth(ready=1, leased=2)
    assert [delivery.body for delivery in broker.fetch("orders", 10)] == [b"4"]
    broker.settle(Settlement(held))
    broker.publish(given.messages("orders", 1, first=5))
    assert [delivery.body for delivery in broker.fetch("orders", 10)] == [b"5"]
    assert broker.depth("others") == Depth(ready=4)
    broker.close()


def test_a_batch_is_one_lease_that_ends_with_its_last_message(tmp_path):
    file = tmp_path / "shop.db"
    broker = opened(file, "orders")
    broker.publish(given.messages("orders", 100))
    deliveries = broker.fetch("orders", 100)
    assert query(file, "select count(*) from unpoison_leases") == [(1,)]
    broker.settle(Settlement(gone=deliveries[:50]))
    broker.settle(Settlement(gone=deliveries[60:]))
    assert query(file, "select count(*) from unpoison_leases") == [(1,)]
    broker.settle(Settlement(gone=deliveries[50:60]))
    assert query(file, "select count(*) from unpoison_leases") == [(0,)]
    assert query(file, "select count(*) from unpoison_line") == [(0,)]
    broker.close()


@for_all(some.sets(some.integers(-50, 50)))
def test_stretches_cover_just_the_positions_they_come_from(positions):
    found = list(ranges(sorted(positions)))
    assert [position for low, high in found for position in range(low, high + 1)] == sorted(positions)
    assert all(low <= high for low, high in found)
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(found))


@for_all(some.lists(some.integers(1, 8), min_size=1, max_size=6), some.randoms(use_true_random=False))
def test_a_lease_ends_exactly_when_all_of_it_is_settled(sizes, random):
    leases, leased, first = Leases(), {}, 1
    for size in sizes:
        leases.add(first, size)
        leased[first] = set(range(first, first + size))
        first += size + random.randrange(2)
    positions = [position for held in leased.values() for position in held]
    random.shuffle(positions)
    while positions:
        batch = sorted(positions.pop() for _ in range(min(len(positions), random.randrange(1, 6))))
        progress = leases.after(batch)
        assert leases.after(batch) == progress, "asking changed something"
        leases.apply(progress)
        for held in leased.values():
            held.difference_update(batch)
        ended = {first for first, left in progress.items() if not left}
        assert ended == {first for first, held in leased.items() if not held}
        leased = {first: held for first, held in leased.items() if held}
