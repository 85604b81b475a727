"""A suspect that runs while a stop is asked for, or while it goes to another consumer. Handlers here cannot be cut off."""

import asyncio
import threading

import pytest

from unpoison import App
from unpoison.app_internals import runnable
from unpoison.brokers.memory import MemoryBroker
from unpoison.flow.consumer import Consumer
from unpoison.model.message import Counters, Delivery
from unpoison.reporting.report import Report
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal
from unpoison.workers.interface import Bell


class Broker(MemoryBroker):
    """Has one suspect. Tells what is asked of it."""

    def __init__(self, url):
        super().__init__(url)
        self.taken = self.extended = 0
        self.on_fetch = lambda: None
        with self.store.changed:
            self.store.put(Delivery(0, "orders", "1", b"1", counters=Counters(vanished=2, alone=True)), None)

    def fetch(self, source, limit):
        self.on_fetch()
        return super().fetch(source, limit)

    def take_suspect(self, source, by):
        self.taken += 1
        return super().take_suspect(source, by)

    def extend(self, deliveries):
        self.extended += 1
        super().extend(deliveries)

    def lose_everything(self):
        """As if another consumer had taken over."""
        with self.store.changed:
            self.store.queue("orders").held.clear()


def consumer_of(request, handler):
    app = App(f"memory://{request.node.name}")
    app.consumer("orders", concurrency=2)(handler)
    prepared, bell, broker = runnable(app), Bell(), Broker(app.settings.url)
    (options,) = prepared.consumers()
    broker.open(["orders"], ring=bell.ring)
    started = prepared.start_workers(options, broker, bell)
    return broker, Consumer(options, broker, started.workers, Report(), started.hooks, bell.ring)


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "async"])
def test_no_suspect_is_started_once_a_stop_was_asked_for(request, is_async):
    ran = []

    def handle(number: int) -> None:
        ran.append(number)

    async def handle_async(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(30)

    broker, consumer = consumer_of(request, handle_async if is_async else handle)
    broker.on_fetch = lambda: consumer.stop(0)
    consumer.run()
    assert (broker.taken, ran) == (0, [])


class Running:
    """A consumer in a thread, with its suspect in the handler until `may_end` is set."""

    def __init__(self, request):
        self.began, self.may_end, self.others = threading.Event(), threading.Event(), []

        def handle(number: int) -> None:
            if number != 1:
                self.others.append(number)
                return
            self.began.set()
            assert self.may_end.wait(60)

        self.broker, self.consumer = consumer_of(request, handle)
        self._thread = threading.Thread(target=self.consumer.run)

    def __enter__(self):
        self._thread.start()
        assert self.began.wait(60)
        return self

    def __exit__(self, *_):
        self.may_end.set()
        self.consumer.stop(60)
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_a_suspect_that_another_consumer_has_is_told_once_and_keeps_nobody_waiting(request):
    with Journal() as journal, Running(request) as running:
        running.broker.lose_everything()
        with running.broker.store.changed:
            running.broker.store.put(Delivery(0, "orders", "2", b"2"), None)
        wait_until(lambda: running.others == [2], lambda: "the other message waits for the lost one")
        assert len(journal.of("ownership-lost")) == 1


def test_a_suspect_is_kept_and_its_loss_noticed_while_a_stop_waits_for_it(request):
    with Journal() as journal, Running(request) as running:
        running.consumer.stop(60)
        asked = running.broker.extended
        wait_until(lambda: running.broker.extended > asked, lambda: "it was not extended during the grace")
        running.broker.lose_everything()
        journal.wait_for("ownership-lost")
