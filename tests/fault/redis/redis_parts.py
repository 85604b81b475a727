"""What the tests of Redis have in common."""

from contextlib import contextmanager

import redis as client

from unpoison.brokers.redis.broker import RedisBroker
from unpoison.port.broker import Depth, Settlement
from unpoison.testing import given

MESSAGES, BATCH = 300, 100


@contextmanager
def opened(url, *sources, **how):
    """A connection of unpoison's, opened, closed after the block."""
    broker = RedisBroker(url)
    broker.open(sources or ("orders",), **how)
    try:
        yield broker
    finally:
        broker.close()


@contextmanager
def reading_ahead(url):
    """A consumer that has finished a batch, and for which the next one was read already."""
    with opened(url) as broker:
        broker.publish(given.messages("orders", MESSAGES))
        broker.settle(Settlement(gone=broker.fetch("orders", BATCH)))
        assert broker.depth("orders") == Depth(ready=MESSAGES - 2 * BATCH, leased=BATCH)
        yield broker


@contextmanager
def raw(url):
    """A connection of the client's, to look and to disturb with."""
    with client.Redis.from_url(url.partition("?")[0], socket_timeout=5) as connection:
        yield connection


def bodies(deliveries):
    return [delivery.body for delivery in deliveries]
