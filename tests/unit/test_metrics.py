"""What the metrics of a consumer say after real messages went through it."""

import threading

import pytest

from tests.unit.scraping import scraped
from unpoison import App, Backoff, Discard, Permanent, RetryLater
from unpoison.app import runnable
from unpoison.flow.run import Run
from unpoison.observing.metrics import Metrics
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import PATIENCE

QUICK = {"backoff": Backoff.fixed(0.0), "max_attempts": 2}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/shop.db"


class Observed:
    """The consumers of some apps in a thread, with their metrics."""

    def __init__(self, *apps, every=0.05):
        self.metrics = Metrics("0.1.0", "abc", every=every)
        self.run = Run([runnable(app) for app in apps], observers=[self.metrics])
        self._thread = threading.Thread(target=self.run.serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self.run.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def value(self, *sample):
        return scraped(self.metrics).get(sample)

    def wait_for(self, value, *sample):
        wait_until(lambda: self.value(*sample) == value, lambda: f"{sample} is {self.value(*sample)}, not {value}")


def drained(*apps):
    """What the metrics say after the sources of these apps were emptied."""
    metrics = Metrics("0.1.0", every=0.05)
    Run([runnable(app) for app in apps], observers=[metrics]).serve(until_empty=True)
    return scraped(metrics)


def shop(url, isolation="inline", handle=None, **options):
    """An app whose handler does what the body says."""
    app = App(url)

    def obey(body: str) -> None:
        match body:
            case "permanent":
                raise Permanent("no such article")
            case "discard":
                raise Discard("a duplicate")
            case "always down":
                raise ConnectionError("refused")
            case "later":
                raise RetryLater(0)

    async def obey_async(body: str) -> None:
        obey(body)

    chosen = handle or (obey_async if isolation == "async" else obey)
    return given.consumer(app, "orders", chosen, isolation="thread" if isolation == "async" else isolation, **(QUICK | options))


def nonzero(found, *names):
    return {sample: value for sample, value in found.items() if sample[0] in names and value}


@pytest.mark.parametrize("isolation", ["inline", "thread", "async"])
def test_each_end_of_a_message_is_counted_once(url, isolation):
    app = shop(url, isolation)
    app.publish_many("orders", ["fine", "fine", "permanent", "discard", "always down"])
    found = drained(app)
    assert nonzero(
        found,
        "unpoison_messages_handled_total",
        "unpoison_messages_discarded_total",
        "poison_pills_total",
        "message_retries_total",
        "unpoison_starts_total",
        "unpoison_failures_total",
        "unpoison_attempts_over_limit_total",
    ) == {
        ("unpoison_messages_handled_total", "orders"): 2,
        ("unpoison_messages_discarded_total", "orders"): 1,
        ("poison_pills_total", "orders", "permanent"): 1,
        ("poison_pills_total", "orders", "transient"): 1,
        ("message_retries_total", "orders"): 1,
        ("unpoison_starts_total", "orders"): 6,
        ("unpoison_failures_total", "orders", "permanent"): 1,
        ("unpoison_failures_total", "orders", "transient"): 2,
    }
    assert found["unpoison_handler_seconds_count", "orders"] == 6
    assert 0 < found["unpoison_handler_seconds_sum", "orders"] < PATIENCE
