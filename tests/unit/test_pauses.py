"""What a broker lacks in the middle of a run pauses its source: no process ends, and nobody is charged."""

import pytest

from unpoison import App
from unpoison.brokers.memory import MemoryBroker
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.flow import consumer, ending
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.running import Journal, drained


@pytest.mark.parametrize("error", [ConfigError, BrokerUnavailable])
@pytest.mark.parametrize("method", ["fetch", "settle", "has_suspect", "depth"])
def test_an_error_of_the_broker_pauses_the_source_until_it_is_gone(monkeypatch, method, error):
    left = [error("a right is gone") for _ in range(3)]
    works = getattr(MemoryBroker, method)

    def fails_at_first(self, *arguments):
        if left:
            raise left.pop()
        return works(self, *arguments)

    started: list[tuple[int, bool]] = []

    def handle(number: int, delivery: Delivery) -> None:
        started.append((delivery.attempt, delivery.returned))

    monkeypatch.setattr(MemoryBroker, method, fails_at_first)
    monkeypatch.setattr(ending, "RETRY_BROKER", (0.01,))
    monkeypatch.setattr(consumer, "IDLE", 0.01)
    app = given.consumer(App(f"memory://{method}-{id(left)}"), "orders", handle)
    app.publish("orders", 1)
    with Journal() as journal:
        assert drained(app)["orders"].done == 1
    assert "a right is gone" in journal.of("pause")[0]
    assert started == [(1, False)]
    assert not left
