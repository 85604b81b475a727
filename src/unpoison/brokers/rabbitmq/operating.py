"""How do two people who work on one DLQ not get into each other's way?

Letters can only be looked at by taking them out for a moment; whoever looks meanwhile would see nothing. So each look and each
change is done under a lock that the server keeps: a queue that only one connection can have, and that ends with it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from unpoison.brokers.rabbitmq.connection import Refused
from unpoison.brokers.rabbitmq.topology import Topology
from unpoison.errors import BrokerUnavailable

LOCKED = 405
PATIENCE = 120.0
ASK_AGAIN = 0.02


@contextmanager
def locked(topology: Topology, queue: str) -> Iterator[None]:
    """Nobody else works on this queue in the meantime."""
    name, ends = f"{queue}.lock", time.monotonic() + PATIENCE
    while True:
        try:
            topology.ask(lambda channel, done: channel.queue_declare(name, exclusive=True, callback=done), "locking")
            break
        except Refused as refused:
            if refused.code != LOCKED:
                raise
        if time.monotonic() > ends:
            raise BrokerUnavailable(f"Somebody else has been working on {queue!r} for {PATIENCE:g} s. Try again later.")
        time.sleep(ASK_AGAIN)
    try:
        yield
    finally:
        if topology.link.is_open:  # the lock ends with the connection
            with suppress(Refused, BrokerUnavailable):
                topology.ask(lambda channel, done: channel.queue_delete(name, callback=done), "unlocking")
