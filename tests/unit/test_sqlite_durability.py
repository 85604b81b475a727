"""What may not be lost is synced to the disk before the call returns; what may be repeated is not."""

import pytest

from tests.unit.sqlite_files import opened
from unpoison.brokers.sqlite.deadletters import SQLiteDeadLetters
from unpoison.model.message import Counters
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.testing import given


@pytest.fixture
def broker(tmp_path):
    broker = opened(tmp_path / "shop.db", "orders")
    yield broker
    broker.close()


@pytest.fixture
def levels(broker):
    """The synchronous level that was in force at each commit."""
    return _recorded(broker)


def _recorded(broker) -> list[str]:
    level = {1: "normal", 2: "full"}[broker._connection.execute("pragma synchronous").fetchone()[0]]
    levels: list[str] = []

    def trace(statement: str) -> None:
        nonlocal level
        words = statement.lower().replace(" ", "")
        if words.startswith("pragmasynchronous="):
            level = words.partition("=")[2]
        elif words == "commit":
            levels.append(level)

    broker._connection.set_trace_callback(trace)
    return levels


def test_a_publish_is_synced(broker, levels):
    broker.publish(given.messages("orders", 3))
    broker.publish(given.messages("orders", 1, delay=60))
    assert levels == ["full", "full"]


def test_taking_and_finishing_messages_is_not_synced(broker, levels):
    broker.publish(given.messages("orders", 3))
    levels.clear()
    broker.settle(Settlement(gone=broker.fetch("orders", 10)))
    assert set(levels) == {"normal"}


def test_a_retry_is_synced(broker, levels):
    broker.publish(given.messages("orders", 1))
    for attempts in (1, 2):
        (delivery,) = broker.fetch("orders", 10)
        levels.clear()
        broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=attempts))]))
        assert levels == ["full"]


@pytest.mark.parametrize("counters", [Counters(vanished=1), Counters(fresh=True), Counters(alone=True), Counters(interrupted=1)])
def test_whatever_counts_against_a_message_is_synced(broker, levels, counters):
    broker.publish(given.messages("orders", 1))
    delivered = broker.fetch("orders", 1)
    levels.clear()
    broker.settle(Settlement(kept=[Kept(delivered[0], counters)]))
    assert levels == ["full"]


def test_that_a_message_only_waits_is_not_synced(broker, levels):
    broker.publish(given.messages("orders", 1))
    for put_off in (1, 2):
        (delivery,) = broker.fetch("orders", 1)
        levels.clear()
        broker.settle(Settlement(kept=[Kept(delivery, Counters(waits_for="billing:443", put_off=put_off, waited=12.0))]))
        assert levels == ["normal"]


def test_a_dead_letter_is_synced_with_everything_in_its_batch(broker, levels):
    broker.publish(given.messages("orders", 3))
    done, *rest = broker.fetch("orders", 10)
    levels.clear()
    broker.settle(Settlement(gone=[done], dead=[Dead(delivery, given.letter_of(delivery)) for delivery in rest]))
    assert levels == ["full"]


def test_what_comes_after_a_synced_step_is_not_synced_by_mistake(broker, levels):
    broker.publish(given.messages("orders", 2))
    first, second = broker.fetch("orders", 10)
    broker.settle(Settlement(kept=[Kept(first, Counters(attempts=1), 60.0)]))
    levels.clear()
    broker.settle(Settlement(gone=[second]))
    assert levels == ["normal"]


def test_replaying_discarding_and_deleting_letters_is_synced(broker, levels):
    broker.publish(given.messages("orders", 3))
    broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery)) for delivery in broker.fetch("orders", 10)]))
    letters = SQLiteDeadLetters(broker, "orders")
    first, second, third = (letter.id for letter in letters.browse())
    levels.clear()
    letters.replay([first])
    letters.remove([second], keep_as="discarded")
    letters.remove([third])
    assert levels == ["full"] * 3


def test_a_takeover_is_synced(broker, tmp_path):
    broker.publish(given.messages("orders", 1))
    broker.fetch("orders", 10)
    broker.close()
    other = opened(tmp_path / "shop.db", "orders")
    levels = _recorded(other)
    assert len(other.fetch("orders", 10)) == 1
    assert levels[0] == "full"
    other.close()
