"""What another program put into the DLQ is understood, and goes back to the stream or list that it came from."""

import json

import pytest

from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from tests.fault.redis.redis_parts import opened, raw
from unpoison.brokers.redis.deadletters import RedisDeadLetters
from unpoison.deadletters import DLQManager
from unpoison.errors import PayloadError


@pytest.fixture
def url(redis):
    return redis.fresh()


@pytest.fixture
def tool(url):
    with raw(url) as connection:
        yield connection


@pytest.fixture
def dlq(url):
    with opened(url) as broker:
        yield DLQManager(RedisDeadLetters(broker, "orders"), "orders")


def fetched(url, source="orders"):
    with opened(url, source) as broker:
        return [(each.body, each.key, each.counters.replays) for each in broker.fetch(source, 10)]


@pytest.mark.parametrize("how", ["as the body", "as fields"])
def test_the_message_inside_of_an_envelope_is_shown_and_replayed(url, tool, dlq, how):
    fields = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in ENVELOPE.items()}
    tool.xadd("dlq:orders", {"body": json.dumps(ENVELOPE)} if how == "as the body" else fields)
    (letter,) = dlq.peek()
    assert (letter.body, letter.message.key, letter.error, letter.classification) == (
        BODY,
        "customer-7",
        "total is odd",
        "permanent",
    )
    assert (letter.original["offset"], letter.last_failed_at) == (17, 1785578400.0)
    dlq.replay_one()
    assert fetched(url) == [(BODY, "customer-7", 1)]
    (replayed,) = dlq.letters(state="replayed")
    assert (replayed.id, replayed.body, replayed.error) == (letter.id, BODY, "total is odd")


def test_bytes_in_a_field_of_an_envelope_arrive_bit_for_bit(url, tool, dlq):
    tool.xadd("dlq:orders", {"original_topic": "orders", "original_value": b"\xff\x00", "error": "KeyError: 'id'"})
    assert dlq.peek()[0].body == b"\xff\x00"
    dlq.replay_one()
    assert [body for body, _, _ in fetched(url)] == [b"\xff\x00"]


def test_an_entry_that_says_nothing_is_replayed_with_all_its_fields(url, tool, dlq):
    tool.xadd("dlq:orders", {"id": "m1", "body": b"\xff", "trace": b"\xfe", "key": "k"})
    tool.xadd("dlq:orders", {"total": 7})
    first, second = dlq.peek()
    assert (first.body, first.message.key, first.message.headers) == (b"\xff", "k", {"trace": "\\xfe"})
    assert (second.body, second.reason) == (b'{"total":"7"}', "it was put here by another program")
    dlq.replay_all()
    with opened(url) as broker:
        found = broker.fetch("orders", 10)
        assert [each.body for each in found] == [b"\xff", b'{"total":"7"}']
        assert broker.native(found[0]).headers == (("trace", b"\xfe"),)


def test_a_letter_from_another_stream_or_list_goes_back_there(url, tool, dlq):
    tool.xadd("mail", {"body": "before"})
    tool.lpush("jobs", "before")
    for topic in ("mail", "jobs"):
        tool.xadd("dlq:orders", {"body": json.dumps(ENVELOPE | {"original_topic": topic})})
    assert dlq.replay_all().count == 2
    assert [fields[b"body"] for _, fields in tool.xrange("mail")] == [b"before", BODY]
    assert [tool.rpop("jobs"), tool.rpop("jobs")] == [b"before", BODY]
    assert (fetched(url), dlq.count(), len(list(dlq.letters(state="replayed")))) == ([], 0, 2)


@pytest.mark.parametrize("topic", ["closed", "a hash"])
def test_a_letter_from_a_key_that_is_no_stream_and_no_list_is_not_sent_anywhere(url, tool, dlq, topic):
    tool.hset("a hash", "a", "b")
    tool.xadd("dlq:orders", {"body": json.dumps(ENVELOPE | {"original_topic": topic})})
    with pytest.raises(PayloadError, match=f"came from '{topic}', and"):
        dlq.replay_one()
    assert dlq.count() == 1


@pytest.mark.parametrize("topic", ["dlq:orders", "unpoison:orders:unpoison:waiting"])
def test_a_letter_that_names_a_key_of_our_own_goes_to_the_source(url, tool, dlq, topic):
    tool.xadd("dlq:orders", {"body": json.dumps(ENVELOPE | {"original_topic": topic})})
    dlq.replay_one()
    assert [body for body, _, _ in fetched(url)] == [BODY]
