"""A DLQ of any name: that of a source, and a stream or list of another program."""

import json

import pytest
import redis as client

from tests.contract.redis_lab import RedisLab
from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from tests.fault.scenes import collected, letters_in_store
from unpoison.app import App
from unpoison.brokers import foreign_dlq, url_with_dlq
from unpoison.errors import ConfigError, PayloadError, Permanent
from unpoison.testing.running import drained


@pytest.fixture
def lab(redis, tmp_path):
    with RedisLab(redis, tmp_path) as lab:
        yield lab


@pytest.fixture
def tool(lab):
    """As another program sees it."""
    with client.Redis.from_url(lab.url) as tool:
        yield tool


def failing(payload: bytes) -> None:
    raise Permanent("no")


def put(tool, kind, **changed):
    body = json.dumps(ENVELOPE | changed).encode()
    if kind == "list":
        tool.lpush("failed", body)
    else:
        tool.xadd("failed", {"body": body})


def taken(tool, key):
    return [fields[b"body"] for _, fields in tool.xrange(key)]


def test_a_source_has_its_letters_in_the_key_that_is_named(lab, tool):
    app = App(lab.url)
    app.consumer("orders", dlq="orders:failed", isolation="inline")(failing)
    app.publish("orders", b"1")
    drained(app)
    assert (tool.xlen("orders:failed"), tool.exists("dlq:orders")) == (1, 0)
    dlq = app.dlq("orders")
    assert [letter.body for letter in dlq.peek()] == [b"1"]
    assert dlq.replay_one()
    assert (dlq.count(), tool.xlen("orders:failed")) == (0, 0)
    with pytest.raises(ConfigError, match="--source orders"):
        foreign_dlq(app.settings.url, "orders:failed")
    app.close()


@pytest.mark.parametrize("kind", ["stream", "list"])
def test_letters_of_another_program_are_shown_and_go_back(lab, tool, kind):
    put(tool, kind)
    put(tool, kind, original_topic="mail", original_value="two", failed_at="2026-08-02T10:00:00+00:00")
    for name in ("orders", "mail"):
        tool.xadd(name, {"body": b"before"})
    letters = foreign_dlq(lab.url, "failed")
    first, second = letters.browse()
    assert [(each.source, each.body) for each in (first, second)] == [("orders", BODY), ("mail", b"two")]
    assert letters.replay([second.id]) == [second.id]
    assert (taken(tool, "mail"), taken(tool, "orders"), letters.count()) == ([b"before", b"two"], [b"before"], 1)
    assert letters.remove([first.id]) == [first.id]
    assert not tool.exists("failed") or tool.xlen("failed") == 0
    letters.broker.close()


@pytest.mark.parametrize("kind", ["stream", "list"])
def test_letters_of_another_program_are_collected_and_sent_back_from_the_store(lab, tool, kind):
    tool.xadd("orders", {"body": b"before"})
    put(tool, kind)
    put(tool, kind, original_topic="failed", original_value="lost")
    assert collected(lab, "failed").new == 2
    assert collected(lab, "failed").moved == 0
    with letters_in_store(lab, "failed") as letters:
        known = {each.source: each.id for each in letters.browse()}
        assert sorted(known) == ["failed", "orders"]
        assert letters.replay([known["orders"]]) == [known["orders"]]
        with pytest.raises(PayloadError, match="does not say where it came from"):
            letters.replay([known["failed"]])
    assert taken(tool, "orders") == [b"before", BODY]


@pytest.mark.parametrize("kind", ["stream", "list"])
def test_a_letter_that_does_not_say_where_it_came_from_stays(lab, tool, kind):
    put(tool, kind, original_topic="failed")
    letters = foreign_dlq(lab.url, "failed")
    (letter,) = letters.browse()
    with pytest.raises(PayloadError, match="does not say where it came from"):
        letters.replay([letter.id])
    assert letters.count() == 1
    letters.broker.close()


def test_letters_of_unpoison_that_another_tool_has_moved_go_to_their_source_from_a_store(lab, tool):
    app = App(lab.url)
    app.consumer("orders", isolation="inline")(failing)
    app.publish("orders", b"1")
    drained(app)
    ((_, fields),) = tool.xrange("dlq:orders")
    tool.xadd("failed", fields)
    letters = foreign_dlq(lab.url, "failed")
    (letter,) = letters.browse()
    assert (letter.source, letter.body) == ("orders", b"1")
    with pytest.raises(PayloadError, match="from a store only"):
        letters.replay([letter.id])
    letters.broker.close()
    with letters_in_store(lab, "failed") as stored:
        (letter,) = stored.browse()
        assert stored.replay([letter.id]) == [letter.id]
    assert drained(app)["orders"].dead == 1
    assert app.dlq("orders").count() == 2
    app.close()


def test_what_is_no_dlq_is_refused(lab, tool):
    tool.set("text", "1")
    with pytest.raises(ConfigError, match="is a string"):
        foreign_dlq(lab.url, "text")
    with pytest.raises(ConfigError, match="must have the same hash tag"):
        url_with_dlq(lab.url, "{orders}", "failed")
    with pytest.raises(ConfigError, match=r"cannot be 'unpoison:sources'"):
        url_with_dlq(lab.url, "orders", "unpoison:sources")
