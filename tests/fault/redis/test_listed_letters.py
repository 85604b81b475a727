"""Dead letters that another program keeps in a list can be seen, sent back and discarded, without unpoison's own keys."""

import json

import pytest
from click.testing import CliRunner
from kombu.connection import Connection
from kombu.entity import Queue

from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from tests.fault.redis.redis_parts import opened, raw
from unpoison import App
from unpoison.cli.main import cli
from unpoison.errors import LetterNotFound, PayloadError

TASK = {
    "task_name": "shop.charge",
    "task_id": "5f0c",
    "args": [7],
    "kwargs": {},
    "error": "KeyError: 'id'",
    "traceback": "Traceback …",
    "failed_at": 1_785_000_000,
}


@pytest.fixture
def url(redis):
    return redis.fresh()


@pytest.fixture
def tool(url):
    with raw(url) as connection:
        yield connection


@pytest.fixture
def dlq(url):
    def open_(tool, *letters, push="rpush"):
        getattr(tool, push)("dlq:orders", *[each if isinstance(each, bytes) else json.dumps(each) for each in letters])
        return app.dlq("orders")

    app = App(url)
    yield open_
    app.close()


def envelope(value, second=0, **changed):
    return ENVELOPE | {"original_value": value, "failed_at": 1_785_000_000 + second} | changed


@pytest.mark.parametrize("push", ["lpush", "rpush"])
def test_envelopes_are_shown_oldest_first_and_go_back_to_a_list_without_the_envelope(tool, dlq, push):
    letters = dlq(tool, envelope("second", 2), envelope("first", 1), push=push)
    assert (letters.count(), [each.body for each in letters.peek()]) == (2, [b"first", b"second"])
    assert [each.error for each in letters.peek()] == ["total is odd"] * 2
    assert letters.replay_one().count == 1
    assert [each.body for each in letters.peek()] == [b"second"]
    assert letters.replay_all().count == 1
    assert (tool.rpop("orders"), tool.rpop("orders"), tool.exists("dlq:orders")) == (b"first", b"second", 0)
    assert set(tool.scan_iter()) == set(), "unpoison made keys of its own"


def test_an_envelope_goes_back_to_a_stream_with_its_key(url, tool, dlq):
    with opened(url, "mail"):
        pass
    dlq(tool, envelope({"id": 7, "total": 1.1}, original_topic="mail")).replay_all()
    with opened(url, "mail") as broker:
        assert [(each.body, each.key) for each in broker.fetch("mail", 10)] == [(BODY, "customer-7")]


def test_a_task_goes_back_as_a_message_of_celery(tool, dlq):
    letters = dlq(tool, TASK | {"queue": "celery"})
    (letter,) = letters.peek()
    assert letter.original == {"queue": "celery", "task": "shop.charge", "task_id": "5f0c", "args": "[7]", "kwargs": "{}"}
    assert (letter.error_type, letter.traceback, letter.last_failed_at) == ("KeyError", "Traceback …", 1_785_000_000)
    assert letters.replay_one("5f0c").replayed == (letter.id,)
    message = json.loads(tool.rpop("celery"))
    assert (message["headers"]["task"], message["content-type"]) == ("shop.charge", "application/json")


def test_a_message_that_kombu_wrote_tells_its_task_and_goes_back_as_it_was(url, tool, dlq):
    with Connection(url) as connection:
        headers = {"lang": "py", "task": "shop.charge", "id": "5f0c", "root_id": "5f0c", "retries": 1, "argsrepr": "(7,)"}
        producer = connection.Producer(serializer="json")
        producer.publish([[7], {}, {}], routing_key="celery", declare=[Queue("celery")], headers=headers)
    written = tool.rpop("celery")
    letters = dlq(tool, written)
    (letter,) = letters.peek()
    assert letter.original.items() >= {"task": "shop.charge", "task_id": "5f0c", "args": "[7]", "kwargs": "{}"}.items()
    assert (letter.body, letter.attempts) == (written, 2)
    letters.replay_all()
    assert tool.rpop("orders") == written


def test_kombu_reads_the_task_that_is_sent_back(url, tool, dlq):
    dlq(tool, TASK | {"queue": "celery"}).replay_all()
    with Connection(url) as connection:
        message = connection.SimpleQueue("celery").get(timeout=5)
        assert message.payload[:2] == [[7], {}]
        assert (message.headers["task"], message.properties["correlation_id"]) == ("shop.charge", "5f0c")
        message.ack()


def test_the_command_line_works_on_them(url, tool, dlq):
    dlq(tool, envelope("first"))
    shown = CliRunner().invoke(cli, ["dlq", "ls", "--url", url, "--source", "orders", "--json"], prog_name="unpoison")
    assert [each["body"] for each in json.loads(shown.stdout)] == ["first"]
    done = CliRunner().invoke(cli, ["dlq", "replay", "--url", url, "--source", "orders", "--all", "--yes"], prog_name="unpoison")
    assert (done.exit_code, tool.lrange("orders", 0, -1)) == (0, [b"first"]), done.output


def test_equal_letters_are_two_and_each_is_sent_once(tool, dlq):
    letters = dlq(tool, envelope("same"), envelope("same"))
    assert len({each.id for each in letters.peek()}) == 2
    assert (letters.replay_one().count, letters.count(), tool.llen("orders")) == (1, 1, 1)
    assert (letters.replay_all().count, letters.count(), tool.llen("orders")) == (1, 0, 2)


def test_a_letter_that_another_operator_took_is_not_sent_again(url, tool, dlq):
    letters = dlq(tool, envelope("a"), envelope("b", 1))
    ids = [each.id for each in letters.peek()]
    letters._letters.freeze()
    other = App(url)
    other.dlq("orders").replay_one(ids[0])
    other.close()
    assert letters._letters.replay(ids) == ids[1:]
    assert tool.llen("orders") == 2


def test_a_replay_ends_although_what_it_sends_fails_again_at_once(tool, dlq, monkeypatch):
    letters = dlq(tool, *[envelope(str(n), n) for n in range(3)])
    take = letters._letters._take

    def failing(*arguments):
        tool.rpush("dlq:orders", json.dumps(envelope("again", 100)), b"no time")
        return take(*arguments)

    monkeypatch.setattr(letters._letters, "page", 1)
    letters.page = 1
    monkeypatch.setattr(letters._letters, "_take", failing)
    assert letters.replay_all().count == 3
    assert letters.count() == 6


def test_what_was_discarded_is_kept_until_it_is_purged(tool, dlq):
    letters = dlq(tool, envelope("a"), b"\xff is no JSON")
    unknown, known = letters.peek()
    assert (unknown.body, unknown.rule) == (b"\xff is no JSON", "it was put here by another program")
    letters.discard(unknown.id)
    with pytest.raises(LetterNotFound):
        letters.discard(unknown.id)
    assert [(each.state, each.body) for each in letters.letters(state=None)] == [
        ("dead", b"a"),
        ("discarded", b"\xff is no JSON"),
    ]
    purged = letters.purge()
    assert (purged.purged, purged.history) == (1, 1)
    assert set(tool.scan_iter()) == set()
    assert known.id


def test_a_letter_from_a_key_of_another_type_is_not_sent_anywhere(tool, dlq):
    tool.hset("a hash", "a", "b")
    letters = dlq(tool, envelope("a", original_topic="a hash"))
    with pytest.raises(PayloadError, match="came from 'a hash', and it is neither a stream nor a list, but a hash"):
        letters.replay_all()
    assert letters.count() == 1


def test_filters_work_on_them(tool, dlq):
    letters = dlq(tool, *[envelope({"total": n}, n) for n in range(5)])
    assert letters.count("body.total>=3 class:permanent") == 2
    assert letters.replay_all(where="body.total>=3").count == 2
    assert letters.count() == 3
