"""The name of a DLQ: in the URL, beside the other options, and in everything that is planned for a source."""

import pytest

from unpoison.app import App
from unpoison.app_internals import runnable
from unpoison.brokers import check_sources, needs_for, url_with_dlq
from unpoison.brokers.kafka.foreign_dlq import Progress
from unpoison.brokers.rabbitmq.provisioning import rights_of
from unpoison.brokers.rabbitmq.url import address as amqp
from unpoison.errors import ConfigError
from unpoison.flow.run import Run
from unpoison.port.broker_url import dlqs_of, parse, with_dlq, without_dlqs

URLS = {
    "amqp://127.0.0.1:1/v": "orders.DLT",
    "kafka://127.0.0.1:1?group=g&prefix=shop.": "orders.DLT",
    "nats://127.0.0.1:1": "LOST",
    "redis://127.0.0.1:1": "orders:failed",
    "sqs://k:s@?region=x&endpoint=http://127.0.0.1:1": "lost-orders",
}


def test_the_url_says_which_dlq_a_source_has():
    url = with_dlq(with_dlq("amqp://h/v?heartbeat=5", "orders", "orders.DLT"), "a&b:c", "ü:1%")
    assert dlqs_of(url) == {"orders": "orders.DLT", "a&b:c": "ü:1%"}
    assert (parse(url, "").options(), dict(parse(url, "").dlqs)) == ({"heartbeat": "5"}, dlqs_of(url))
    assert with_dlq(url, "orders", "orders.DLT") == url
    assert without_dlqs(url) == "amqp://h/v?heartbeat=5"
    assert without_dlqs("amqp://h/v?dlq=a:b") == without_dlqs("amqp://h/v") == "amqp://h/v"
    assert dlqs_of("amqp://h/v?dlq_ttl=5") == dlqs_of("amqp://h/v") == {}
    assert amqp("amqp://h/v?dlq_ttl=5&dlq=orders:orders.DLT").dlq_ttl == 5
    with pytest.raises(ConfigError, match=r"two DLQs: 'orders.DLT' in the URL, and 'other'"):
        with_dlq(url, "orders", "other")


def test_apps_of_one_run_cannot_share_a_dlq_either():
    apps = []
    for source in ("orders", "mail"):
        app = App("redis://h?group=shop")
        app.consumer(source, dlq="lost", isolation="inline")(print)
        apps.append(runnable(app))
    with pytest.raises(ConfigError, match="would share 'lost'"):
        Run(apps)
    Run(apps[:1])


@pytest.mark.parametrize("option", ["dlq=orders", "dlq=:x", "dlq=orders:", "dlq=orders:a&dlq=orders:b"])
def test_a_name_that_cannot_be_understood_is_refused(option):
    with pytest.raises(ConfigError, match=r"Write \?dlq=orders:orders.DLT"):
        parse(f"amqp://h/v?{option}", "")


@pytest.mark.parametrize(("url", "dlq"), URLS.items())
def test_what_is_planned_for_a_source_has_the_name_of_its_dlq(url, dlq):
    needs = needs_for(url_with_dlq(url, "orders", dlq), ["orders", "mail"], "shop")
    told = " ".join(f"{step.name} {' '.join(step.commands)}" for step in needs.steps)
    assert dlq in told
    for usual in ("orders.dlq", "orders_DLQ", "orders-dlq", "dlq:orders"):
        assert usual not in told
    assert any(usual in told for usual in ("mail.dlq", "mail_DLQ", "mail-dlq", "dlq:mail"))


@pytest.mark.parametrize(("url", "dlq"), URLS.items())
def test_two_sources_cannot_have_one_dlq_and_none_has_what_is_something_else(url, dlq):
    app = App(url)
    app.consumer("orders", dlq=dlq, isolation="inline")(print)
    with pytest.raises(ConfigError, match=f"would share '.*{dlq.replace('.', '.')[-6:]}'"):
        app.consumer("mail", dlq=dlq, isolation="inline")(print)
    with pytest.raises(ConfigError, match=r"would share|cannot be|cannot have"):
        check_sources(url_with_dlq(url, "mail", "mail"), ["mail"])


def test_the_rights_of_rabbitmq_cover_the_named_dlq_and_what_is_beside_it():
    where = amqp("amqp://h/v?dlq=orders:orders.DLT")
    rights = rights_of(where, ["orders", "mail"], create=True)
    given = rights.patterns
    assert not rights.lacking(given)
    assert {"orders.DLT", "orders.DLT.history", "orders.DLT.lock"} <= set(rights.names["read"])
    assert "orders.dlq" not in rights.names["read"]


def test_a_collector_of_a_topic_commits_up_to_the_first_letter_that_is_not_in_the_store():
    progress = Progress(10, 20)
    progress.read.extend([10, 12, 13, 17])
    assert progress.advance() is None
    progress.done.add(12)
    assert progress.advance() is None
    progress.done.add(10)
    assert progress.advance() == 13
    progress.done.update([13, 17])
    assert progress.advance() == 18
    assert progress.advance() is None
    progress.is_whole = True
    assert progress.advance() == 20
