"""Do consumers report how many messages they have handled, seldom enough?"""

import msgspec
import pytest

from tests.unit.stores import Clock, new_store, opened, sign
from unpoison.flow.store_link import StoreLink
from unpoison.reporting.report import Tally
from unpoison.store.sql_store import COUNTS_EVERY


@pytest.fixture(scope="module")
def database(postgresql):
    return postgresql.fresh()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    return new_store(request, tmp_path)


def counted(done, failed=0, dead=0):
    return msgspec.structs.replace(sign(), done=done, failed=failed, dead=dead)


def told(store):
    (found,) = store.consumers("orders")
    return found.done, found.failed, found.dead


def test_counts_are_written_with_a_sign_of_life_and_then_every_two_seconds(url):
    clock = Clock()
    store = opened(url, clock)
    store.exchange(counted(1), ())
    assert told(store) == (1, 0, 0)
    store.exchange(counted(2, 2, 1), ())
    assert told(store) == (1, 0, 0)  # a paused consumer asks more often than that
    clock.now += COUNTS_EVERY
    store.exchange(counted(3, 2, 1), ())
    assert told(store) == (3, 2, 1)
    clock.now += COUNTS_EVERY
    before = store.consumers("orders")[0].seen_at
    store.exchange(counted(3, 2, 1), ())
    assert store.consumers("orders")[0].seen_at == before  # nothing new: nothing is written
    store.close()


def test_a_consumer_tells_those_of_its_report(tmp_path):
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    counts = Tally(done=5, retried=3, dead=2, discarded=7, released=1)
    link = StoreLink(opened(url), "orders", "a:1", None, lambda: None, counts=lambda: counts)
    link.step()
    store = opened(url)
    assert told(store) == (5, 5, 2)
    store.close()
