"""Two sources that would share a queue, topic, stream or key of their broker are refused."""

import pytest

from unpoison import App
from unpoison.app_internals import consumers_of, runnable
from unpoison.brokers import check_sources
from unpoison.errors import ConfigError
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp

SHARED = [
    ("amqp://h/v", "orders", "orders.dlq", "orders.dlq"),
    ("amqp://h/v", "orders", "orders.suspects", "orders.suspects"),
    ("amqp://h/v", "orders", "orders.dlq.history", "orders.dlq.history"),
    ("redis://h/0", "orders", "dlq:orders", "dlq:orders"),
    ("redis://h/0?group=g", "orders", "unpoison:orders:g:waiting", "unpoison:orders:g:waiting"),
    ("nats://h", "orders.eu", "orders_eu", "orders_eu"),
    ("nats://h", "orders", "orders_DLQ", "orders_DLQ"),
    ("nats://h?group=g", "orders.eu", "orders_eu_g_RETRIES", "orders_eu_g_RETRIES"),
    ("kafka://h?group=g", "orders", "orders.dlq", "orders_dlq"),
    ("kafka://h?group=g", "orders", "orders.g.retry", "orders_g_retry"),
    ("kafka://h?group=g", "orders.eu", "orders_eu", "orders_eu"),
    ("sqs://?region=x", "orders", "orders-dlq", "orders-dlq"),
    ("sqs://?region=x", "orders.fifo", "orders-fifo", "orders-fifo-replays"),
    ("sqs://?region=x", "orders", "orders-suspects", "orders-suspects"),
]


@pytest.mark.parametrize(("url", "first", "second", "name"), SHARED)
def test_two_sources_with_one_native_name_are_refused(url, first, second, name):
    app = App(url)
    app.consumer(first)(print)
    with pytest.raises(ConfigError, match=f"Sources '{first}' and '{second}' would share '{name}'"):
        app.consumer(second)(print)
    assert list(consumers_of(app)) == [first]
    with pytest.raises(ConfigError, match="would share"):
        app.publish(second, 1)
    with pytest.raises(ConfigError, match="would share"):
        app.publish_many(second, [1])


@pytest.mark.parametrize(
    "url", ["amqp://h/v", "redis://h", "nats://h", "kafka://h?group=g", "sqs://?region=x", "sqlite:///x.db", "postgresql://h/x"]
)
def test_sources_with_names_of_their_own_are_not(url):
    check_sources(url, ["orders", "orders-eu", "orders_us", "orders2", "shop"])


def test_two_apps_of_one_run_are_looked_at_together():
    apps = []
    for source in ("orders.eu", "orders_eu"):
        app = App("nats://h")
        app.consumer(source, isolation="inline")(print)
        apps.append(runnable(app))
    assert all(isinstance(app, RunnableApp) for app in apps)
    with pytest.raises(ConfigError, match=r"'orders[._]eu' and 'orders[._]eu' would share"):
        Run(apps)


@pytest.mark.parametrize("url", ["kafka://h", "kafka+ssl://u:s3cr3t@h?prefix=t."])
def test_a_consumer_of_kafka_needs_a_group(url):
    app = App(url)
    with pytest.raises(
        ConfigError, match=r"Consumer 'orders': .* names no consumer group.*kafka://host:9092\?group=billing"
    ) as no:
        app.consumer("orders")(print)
    assert "s3cr3t" not in str(no.value)
    assert consumers_of(app) == {}
