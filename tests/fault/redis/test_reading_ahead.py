"""While much flows, the next messages are read while others are at work. What nobody comes for is not lost and not counted."""

import pytest

from tests.contract.redis_lab import RedisLab
from tests.fault.redis.redis_parts import BATCH, MESSAGES, bodies, opened, raw, reading_ahead
from tests.servers_plugin import private_or_skip
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import UNTRIED
from unpoison.port.broker import Depth, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until


@pytest.fixture(scope="module")
def server():
    """Of its own: connections of everybody are cut here."""
    with private_or_skip("redis") as server:
        yield server


@pytest.fixture
def url(server):
    return server.fresh()


@pytest.fixture
def flowing(url):
    with reading_ahead(url) as broker:
        yield broker


def numbers(first, last):
    return [str(number).encode() for number in range(first, last)]


def test_what_was_read_ahead_is_handed_out_in_order_and_never_more_than_was_asked_for(flowing):
    batches = [bodies(flowing.fetch("orders", size)) for size in (30, 100, 500, 10)]
    assert [len(batch) for batch in batches] == [30, 70, 100, 0]
    assert [body for batch in batches for body in batch] == numbers(BATCH, MESSAGES)


def test_what_nobody_came_for_goes_back_as_it_was(flowing, url):
    flowing.close()
    with opened(url) as other:
        found = [delivery for _ in range(4) for delivery in other.fetch("orders", 100)]
        assert sorted(bodies(found)) == numbers(BATCH, MESSAGES)
        assert {id(delivery.counters) for delivery in found if delivery.counters == UNTRIED} == {id(UNTRIED)}
        assert not any(delivery.returned for delivery in found)


def test_what_was_read_over_a_connection_that_was_cut_is_handed_out_again_uncounted(flowing, url):
    with raw(url) as tool:
        tool.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    found = []
    wait_until(lambda: fetched(flowing, found) and len(found) == MESSAGES - BATCH, lambda: f"Only {len(found)} came")
    assert sorted(bodies(found)) == sorted(numbers(BATCH, MESSAGES))
    assert not any(delivery.returned for delivery in found)
    flowing.settle(Settlement(gone=found))
    assert flowing.depth("orders") == Depth()


def fetched(broker, found):
    try:
        found += broker.fetch("orders", 100)
    except BrokerUnavailable:
        return False
    return True


def test_what_was_read_for_a_consumer_that_was_taken_over_runs_elsewhere(server, tmp_path):
    with RedisLab(server, tmp_path) as lab:
        stale, other = lab.broker("orders"), lab.broker("orders")
        stale.publish(given.messages("orders", MESSAGES))
        first = stale.fetch("orders", BATCH)
        rest = stale.fetch("orders", BATCH)
        stale.settle(Settlement(gone=first))
        lab.steal(stale, rest)
        with pytest.raises(OwnershipLost):
            stale.settle(Settlement(gone=rest))
        found = []
        while batch := other.fetch("orders", 100):
            found += batch
        assert sorted(bodies(found)) == sorted(numbers(BATCH, MESSAGES))


def test_a_few_finished_messages_do_not_make_it_take_more(url):
    with opened(url) as broker:
        broker.publish(given.messages("orders", MESSAGES))
        held = broker.fetch("orders", BATCH)
        broker.settle(Settlement(gone=held[:10]))
        assert broker.depth("orders") == Depth(ready=MESSAGES - BATCH, leased=BATCH - 10)
