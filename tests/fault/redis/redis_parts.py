"""What the tests of Redis have in common."""

from contextlib import contextmanager

import redis as client

from unpoison.brokers.redis.broker import RedisBroker


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
def raw(url):
    """A connection of the client's, to look and to disturb with."""
    with client.Redis.from_url(url.partition("?")[0], socket_timeout=5) as connection:
        yield connection


def bodies(deliveries):
    return [delivery.body for delivery in deliveries]
