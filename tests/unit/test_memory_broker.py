"""What is special about the broker in memory: it lives and ends with its URL and its process."""

import threading

from unpoison.brokers.memory import MemoryBroker
from unpoison.testing import given


def connected(url, *sources, ring=None):
    broker = MemoryBroker(url)
    broker.open(sources, ring=ring)
    return broker


def test_connections_with_the_same_url_share_messages_and_others_do_not():
    one, same, other = (connected(url, "orders") for url in ("memory://shop", "memory://shop", "memory://others"))
    one.publish(given.messages("orders", 1))
    assert list(other.fetch("orders", 10)) == []
    assert len(same.fetch("orders", 10)) == 1


def test_a_closed_connection_rings_no_more_and_leaves_no_thread():
    threads = threading.active_count()
    rung = threading.Event()
    broker = connected("memory://closing", "orders", ring=rung.set)
    broker.close()
    broker._bell.join(10)
    rung.clear()
    connected("memory://closing", "orders").publish(given.messages("orders", 1))
    assert not rung.is_set()
    assert threading.active_count() == threads
