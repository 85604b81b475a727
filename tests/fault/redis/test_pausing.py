"""A paused consumer reads nothing ahead, and what it had read goes back as it was."""

import pytest

from tests.fault.redis.redis_parts import BATCH, MESSAGES, bodies, opened, reading_ahead
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import UNTRIED
from unpoison.port.broker import Depth, Settlement


@pytest.fixture
def url(redis):
    return redis.fresh()


@pytest.fixture
def flowing(url):
    with reading_ahead(url) as broker:
        yield broker


def test_what_was_read_ahead_goes_back_uncounted_and_others_get_it(flowing, url):
    flowing.pause("orders")
    assert flowing.depth("orders") == Depth(ready=MESSAGES - BATCH)
    (probe,) = flowing.fetch("orders", 1)
    assert flowing.depth("orders") == Depth(ready=MESSAGES - BATCH - 1, leased=1)
    with opened(url) as other:
        found = [probe, *(each for _ in range(4) for each in other.fetch("orders", 100))]
        assert sorted(bodies(found)) == sorted(str(number).encode() for number in range(BATCH, MESSAGES))
        assert {each.counters for each in found} == {UNTRIED}
        other.settle(Settlement(gone=found[1:]))
    flowing.settle(Settlement(gone=[probe]))


def test_a_paused_consumer_that_finishes_a_full_batch_reads_no_other_ahead(flowing):
    batch = flowing.fetch("orders", BATCH)
    flowing.pause("orders")
    flowing.settle(Settlement(gone=batch))
    assert flowing.depth("orders") == Depth(ready=MESSAGES - 2 * BATCH)
    flowing.resume("orders")
    flowing.settle(Settlement(gone=flowing.fetch("orders", BATCH)))
    assert flowing.depth("orders") == Depth()


def test_what_cannot_go_back_for_now_goes_back_with_the_next_probe(flowing, monkeypatch):
    flowing.fetch("orders", 1)  # now the answer is here, and the rest of it waits for the next fetch
    with monkeypatch.context() as patch:
        patch.setattr(flowing, "settle", _fails)
        with pytest.raises(BrokerUnavailable):
            flowing.pause("orders")
    assert len(flowing.fetch("orders", 1)) == 1
    assert flowing.depth("orders") == Depth(ready=MESSAGES - BATCH - 2, leased=2)


def test_what_went_back_without_an_answer_is_not_handed_out_here_when_the_pause_is_over(flowing, url, monkeypatch):
    """The connection may break after the server has heeded it: then others may have these messages."""
    flowing.fetch("orders", 1)
    settle = flowing.settle

    def heeded_without_an_answer(settlement):
        settle(settlement)
        _fails(settlement)

    with monkeypatch.context() as patch:
        patch.setattr(flowing, "settle", heeded_without_an_answer)
        with pytest.raises(BrokerUnavailable):
            flowing.pause("orders")
    flowing.resume("orders")
    with opened(url) as other:
        taken = bodies(other.fetch("orders", MESSAGES))
        found = bodies(flowing.fetch("orders", MESSAGES))
    assert set(taken).isdisjoint(found)
    assert len(taken) + len(found) == MESSAGES - BATCH - 1


def _fails(_):
    raise BrokerUnavailable("Not now.")
