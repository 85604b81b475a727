"""How do two people who work on one DLQ not get into each other's way?

Letters can only be looked at by taking them out for a moment; whoever looks meanwhile would see nothing. So each look and each
change is done under a lock that the server keeps: the one consumer that an empty queue may have, which ends with its connection.
Nothing is declared for it, since that is a right which not everybody has.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from unpoison.brokers.rabbitmq.connection import IN_USE, Channel, Link, Refused
from unpoison.brokers.rabbitmq.topology import Topology, lock_of
from unpoison.errors import BrokerUnavailable

PATIENCE = 120.0
ASK_AGAIN = 0.02


@contextmanager
def locked(topology: Topology, source: str) -> Iterator[None]:
    """Nobody else works on the dead letters of this source in the meantime."""
    ends = time.monotonic() + PATIENCE
    while (lock := _lock(topology.link, lock_of(source))) is None:
        if time.monotonic() > ends:
            raise BrokerUnavailable(
                f"Somebody else has been working on the dead letters of {source!r} for {PATIENCE:g} s. Try again later."
            )
        time.sleep(ASK_AGAIN)
    try:
        yield
    finally:
        lock.close()


def _lock(link: Link, queue: str) -> Channel | None:
    """The channel that has the lock as long as it is open; None if another has it."""
    channel = link.channel()
    try:
        channel.ask(lambda pika, done: pika.basic_consume(queue, _never, auto_ack=True, exclusive=True, callback=done), "locking")
    except Refused as refused:
        if IN_USE in refused.text:
            return None
        raise
    return channel


def _never(*_: object) -> None:
    """Nothing is ever in this queue."""
