"""Each finding about NATS: the server that has it, and the same one after the fix that is told."""

import pytest

from tests.contract.nats_lab import NATSLab
from unpoison.brokers import checks_for, findings_for
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.url import address
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.testing import given
from unpoison.testing.running import drained

SECOND = 10**9


@pytest.fixture
def lab(tmp_path, nats):
    with NATSLab(nats, tmp_path, ack_wait=30.0) as lab:
        lab.url += f"&monitor=http://127.0.0.1:{nats.ports['http']}"
        yield lab


@pytest.fixture
def raw(lab):
    connection = Connection(address(lab.url))
    yield connection
    connection.close()


def found(lab, *sources):
    """The findings by name, except for those that this server has for all of its accounts."""
    return {each.name: each for each in findings_for(lab.url, sources) if each.name != "sync-delayed"}


def update(raw, name, **settings):
    raw.ask(f"STREAM.UPDATE.{name}", raw.ask(f"STREAM.INFO.{name}")["config"] | settings)


def change(raw, stream, name, **settings):
    config = raw.ask(f"CONSUMER.INFO.{stream}.{name}")["config"] | settings
    raw.ask(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})


def test_a_source_that_unpoison_made_is_in_order_and_looking_changes_nothing(lab, raw):
    lab.app().publish_many("orders", range(3))
    before = [raw.ask(f"STREAM.INFO.{name}")["state"] for name in ("orders", "orders_unpoison_RETRIES", "orders_DLQ")]
    assert found(lab) == {}
    assert found(lab, "orders") == {}
    assert [raw.ask(f"STREAM.INFO.{name}")["state"] for name in ("orders", "orders_unpoison_RETRIES", "orders_DLQ")] == before


def test_a_source_that_nobody_has_used_is_told(lab):
    lab.broker("orders")
    assert list(found(lab, "ordres")) == ["source-missing"]


@pytest.mark.parametrize(
    ("stream", "broken", "mended", "name", "loses"),
    [
        ("orders", {"no_ack": True}, {"no_ack": False}, "stream-without-acks", True),
        ("orders", {"max_age": 3600 * SECOND}, {"max_age": 0}, "stream-drops-messages", False),
        ("orders", {"max_msgs": 9, "discard": "old"}, {"discard": "new"}, "stream-drops-messages", False),
        ("orders_unpoison_RETRIES", {"max_age": 3600 * SECOND}, {"max_age": 0}, "retries-expire", True),
        ("orders_DLQ", {"max_msgs": 9, "discard": "old"}, {"discard": "new"}, "retries-expire", True),
    ],
)
def test_a_stream_that_loses_messages_is_told_until_it_is_mended(lab, raw, stream, broken, mended, name, loses):
    lab.broker("orders").close()
    update(raw, stream, **broken)
    findings = found(lab)
    assert [(each.name, each.loses) for each in findings.values()] == [(name, loses)]
    assert f"'{stream}'" in findings[name].problem
    update(raw, stream, **mended)
    assert found(lab) == {}


@pytest.mark.parametrize(
    ("broken", "mended", "name", "loses"),
    [
        ({"max_deliver": 5}, {"max_deliver": -1}, "delivery-limit", True),
        ({"max_ack_pending": 10}, {"max_ack_pending": 10_000}, "few-pending", False),
        ({"ack_wait": SECOND}, {"ack_wait": 30 * SECOND}, "short-ack-wait", False),
    ],
)
def test_a_consumer_that_loses_messages_or_holds_them_up_is_told_until_it_is_mended(lab, raw, broken, mended, name, loses):
    lab.broker("orders").close()
    for stream, consumer in (("orders", "unpoison"), ("orders_unpoison_RETRIES", "suspects")):
        change(raw, stream, consumer, **broken)
        assert [(each.name, each.loses) for each in found(lab).values()] == [(name, loses)]
        change(raw, stream, consumer, **mended)
        assert found(lab) == {}


def test_a_paused_consumer_is_told_until_it_goes_on(lab, raw):
    lab.broker("orders").close()
    raw.ask("CONSUMER.PAUSE.orders.unpoison", {"pause_until": "2100-01-01T00:00:00Z"})
    assert list(found(lab)) == ["consumer-paused"]
    raw.ask("CONSUMER.PAUSE.orders.unpoison", {})
    assert found(lab) == {}


def test_a_stream_in_memory_is_told(lab, raw):
    raw.ask("STREAM.CREATE.shop", {"name": "shop", "subjects": ["orders"], "storage": "memory"})
    broker = lab.connect()
    broker.open(["orders"])
    broker.close()
    assert found(lab)["stream-in-memory"].loses
    raw.ask("STREAM.DELETE.shop")
    lab.broker("orders").close()
    assert found(lab) == {}


def test_a_consumer_that_cannot_be_used_is_told_until_it_is_gone(lab, raw):
    lab.broker("orders").close()
    raw.ask("CONSUMER.DELETE.orders.unpoison")
    pushing = {"durable_name": "unpoison", "ack_policy": "explicit", "deliver_subject": "elsewhere"}
    raw.ask("CONSUMER.DURABLE.CREATE.orders.unpoison", {"stream_name": "orders", "config": pushing})
    assert list(found(lab)) == ["consumer-unusable"]
    raw.ask("CONSUMER.DELETE.orders.unpoison")
    assert found(lab) == {}


def test_a_stream_that_was_deleted_is_told_until_a_consumer_makes_it_anew(lab, raw):
    lab.broker("orders").close()
    raw.ask("STREAM.DELETE.orders_unpoison_RETRIES")
    assert list(found(lab)) == ["streams-missing"]
    lab.broker("orders").close()
    assert found(lab) == {}


def test_retries_without_schedules_on_a_server_that_has_them_are_told(lab, raw):
    subjects = ["unpoison.again.unpoison.orders", "unpoison.suspects.unpoison.orders", "unpoison.later.unpoison.orders.*"]
    name = "orders_unpoison_RETRIES"
    raw.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, "retention": "workqueue"})
    seen: list[int] = []
    app = given.consumer(lab.app(), "orders", seen.append, schema=int)
    app.publish("orders", 1, delay=0.1)
    drained(app)
    assert seen == [1]
    lab.close()
    assert list(found(lab)) == ["schedules-off"]
    raw.ask(f"STREAM.DELETE.{name}")
    lab.broker("orders").close()
    assert found(lab) == {}


def test_many_dead_letters_are_told_until_they_are_replayed(lab):
    given.dead_letters(lab, "orders", [b"1"] * 101)
    assert list(found(lab)) == ["many-dead-letters"]
    lab.dlq("orders").replay_all()
    assert found(lab) == {}


@pytest.mark.parametrize(("settings", "expected"), [({}, ["sync-delayed"]), ({"jetstream.sync_interval": "always"}, [])])
def test_a_server_that_syncs_now_and_then_is_told_until_it_always_does(private_server, settings, expected):
    server = private_server("nats", settings=settings)
    monitor = f"?monitor=http://127.0.0.1:{server.ports['http']}"
    assert [each.name for each in findings_for(server.url + monitor)] == expected


def test_what_cannot_be_seen_is_told(private_server):
    server = private_server("nats")
    (finding,) = findings_for(f"{server.url}?monitor=http://127.0.0.1:1")
    assert (finding.name, finding.loses) == ("cannot-look", False)


def test_an_account_that_is_nearly_full_is_told(private_server):
    account = "{ jetstream: { max_file: 64K, max_mem: 1M }, users: [{ user: small, password: small }] }"
    server = private_server("nats", settings={"accounts": f"{{ small: {account} }}", "jetstream.sync_interval": "always"})
    url = f"nats://small:small@127.0.0.1:{server.port}"
    full = f"{url}?monitor=http://127.0.0.1:{server.ports['http']}"
    connection = Connection(address(url))
    try:
        connection.ask("STREAM.CREATE.shop", {"name": "shop", "subjects": ["shop"]})
        assert list(findings_for(full)) == []
        connection.request(b"shop", b"x" * 60_000, "publishing")
        assert [each.name for each in findings_for(full)] == ["storage-nearly-full"]
        connection.ask("STREAM.PURGE.shop")
        assert list(findings_for(full)) == []
    finally:
        connection.close()


def test_an_older_server_is_told_and_a_newer_one_is_the_fix(nats_2_9, lab):
    url = f"{nats_2_9.fresh()}?monitor=http://127.0.0.1:{nats_2_9.ports['http']}"
    assert "no-schedules" in {each.name for each in findings_for(url)}
    assert "no-schedules" not in found(lab)


def test_a_server_that_is_not_there_or_refuses_is_an_error(nats):
    with pytest.raises(BrokerUnavailable):
        findings_for("nats://127.0.0.1:1")
    with pytest.raises(ConfigError, match="refuses the login"):
        findings_for(f"nats://nobody:x@127.0.0.1:{nats.port}")


def test_the_checks_are_named():
    assert {"delivery-limit", "retries-expire", "sync-delayed"} <= set(checks_for("nats://x"))
