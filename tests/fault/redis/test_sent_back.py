"""Letters that were moved into a store go back to where their messages came from, as they were."""

import json

import msgspec
import pytest

from tests.contract.cutting_proxy import CuttingProxy
from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from tests.fault.moved import moved
from tests.fault.redis.redis_parts import bodies, opened, raw
from unpoison.brokers import dead_letters_for
from unpoison.brokers.redis import deadletters, listed_letters, sending_back
from unpoison.brokers.redis.deadletters import RedisDeadLetters
from unpoison.brokers.redis.listed_letters import ListedLetters
from unpoison.brokers.redis.sending_back import Native
from unpoison.errors import Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import STORED, Dead, Settlement
from unpoison.testing import given


@pytest.fixture
def url(redis):
    return redis.fresh()


@pytest.fixture
def tool(url):
    with raw(url) as connection:
        yield connection


@pytest.fixture
def letters(url):
    with opened(url) as broker:
        yield RedisDeadLetters(broker, "orders")


@pytest.fixture
def listed(url, tool):
    def open_(*elements):
        tool.rpush("dlq:orders", *[each if isinstance(each, bytes) else json.dumps(each) for each in elements])
        made = dead_letters_for(url, "orders")
        assert isinstance(made, ListedLetters)
        opened.append(made)
        return made

    opened = []
    yield open_
    for each in opened:
        each.broker.close()


def given_up(broker, limit=10):
    """What there is becomes dead letters, without any program between."""
    deliveries = broker.fetch("orders", limit)
    broker.settle(Settlement(dead=[Dead(each, given.letter_of(each)) for each in deliveries]))
    return deliveries


def given_letters(letters, *contents):
    letters.broker.publish([Outgoing(f"m{n}", "orders", body) for n, body in enumerate(contents)])
    return given_up(letters.broker)


@pytest.mark.parametrize("how", ["as the body", "as fields"])
def test_a_letter_of_another_program_goes_back_to_its_stream_or_list_and_nowhere_else(tmp_path, tool, letters, how):
    tool.xadd("mail", {"body": "before"})
    tool.lpush("jobs", "before")
    for topic in ("mail", "jobs"):
        told = ENVELOPE | {"original_topic": topic, "tier": "gold"}
        fields = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in told.items()}
        tool.xadd("dlq:orders", {"body": json.dumps(told), "x": b"\xff"} if how == "as the body" else fields)
    stored = moved(letters, tmp_path)
    assert letters.count() == 0
    assert all(b"gold" in each.native for each in stored)
    assert (("x", b"\xff") if how == "as the body" else ("tier", "gold")) in stored[0].headers
    assert letters.send_back(stored) == STORED
    assert [fields[b"body"] for _, fields in tool.xrange("mail")] == [b"before", BODY]
    assert tool.xrevrange("mail", count=1)[0][1][b"key"] == b"customer-7"
    assert [tool.rpop("jobs"), tool.rpop("jobs"), tool.rpop("jobs")] == [b"before", BODY, None]
    assert not letters.broker.fetch("orders", 10)
    assert not letters.browse(state=None)


def test_fields_that_are_no_text_and_those_of_one_name_come_back_as_they_were(tmp_path, tool, letters):
    fields = [b"id", b"m1", b"trace", b"\xff", b"trace", b"two", b"body", b"\x00\xff", b"headers", b'{ "a":"b"}', b"key", b"\xfe"]
    tool.execute_command("XADD", "orders", "*", *fields)
    tool.execute_command("XADD", "orders", "*", b"total", b"7", b"raw", b"\xff")
    before = given_up(letters.broker)
    stored = moved(letters, tmp_path)
    (shown,) = [value for name, value in stored[0].headers if name == "fields"]
    assert [tuple(each) for each in shown] == [
        ("id", "m1"),
        ("trace", b"\xff"),
        ("trace", "two"),
        ("headers", '{ "a":"b"}'),
        ("key", b"\xfe"),
    ]
    assert b"\x00\xff" not in stored[0].native
    assert letters.send_back(stored) == STORED
    after = letters.broker.fetch("orders", 10)
    assert [each.receipt.fields for each in after] == [each.receipt.fields for each in before]
    assert [(each.body, each.counters.replays) for each in after] == [(each.body, 1) for each in before]


def test_one_that_cannot_be_sent_stops_none_of_the_others(tmp_path, tool, letters):
    tool.hset("a hash", "a", "b")
    for topic in ("closed", "orders", "a hash", "mail"):
        tool.xadd("dlq:orders", {"body": json.dumps(ENVELOPE | {"original_topic": topic})})
    tool.xadd("mail", {"body": "before"})
    stored = moved(letters, tmp_path)
    empty = msgspec.structs.replace(stored[3], native=msgspec.msgpack.encode(Native(b"", "", "mail", [])))
    outcome = letters.send_back([*stored, empty])
    assert {number: each.refusal for number, each in outcome.refused.items()} == {
        0: Refusal.NO_SUCH_SOURCE,
        2: Refusal.NO_SUCH_SOURCE,
        4: Refusal.OTHER,
    }
    assert "it came from 'closed', and there is no such key" in outcome.refused[0].reason
    assert "it came from 'a hash', and it is neither a stream nor a list, but a hash" in outcome.refused[2].reason
    assert not outcome.unknown
    assert bodies(letters.broker.fetch("orders", 10)) == [BODY]
    assert tool.xlen("mail") == 2


def test_only_the_group_that_gave_it_up_gets_it(tmp_path, url, letters):
    with opened(f"{url}?group=billing") as billing:
        letters.broker.publish(given.messages("orders", 1))
        letters.broker.settle(Settlement(gone=letters.broker.fetch("orders", 10)))
        given_up(billing)
        stored = moved(letters, tmp_path)
        assert letters.send_back(stored) == STORED
        assert [each.counters.replays for each in billing.fetch("orders", 10)] == [1]
        assert not letters.broker.fetch("orders", 10)


@pytest.mark.parametrize("told", [b"later", b"a/b", b""])
def test_a_letter_that_names_no_group_goes_to_the_one_of_the_operator(tmp_path, tool, letters, told):
    tool.xadd("dlq:orders", {"body": "1", "group": told})
    assert letters.send_back(moved(letters, tmp_path)) == STORED
    assert bodies(letters.broker.fetch("orders", 10)) == [b"1"]


def test_sent_twice_while_it_is_there_it_is_one_and_again_after_it_has_died_again(tmp_path, letters):
    given_letters(letters, b"1")
    for replays in (1, 2, 3):
        stored = moved(letters, tmp_path)
        assert letters.send_back(stored) == STORED
        assert letters.send_back(stored) == STORED
        (delivery,) = letters.broker.fetch("orders", 10)
        assert letters.send_back(stored) == STORED
        assert letters.broker.depth("orders").ready == 0
        assert delivery.counters.replays == replays
        letters.broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery))]))


GARBAGE = [None, b"", b"\xff", b"\xc1", b"\x94\xa0\xa0\xa0\xa0", msgspec.msgpack.encode({"no": 1})]
NO_GROUP = msgspec.msgpack.encode(Native(b"1-1", "a b", "", [b"body", None]))


@pytest.mark.parametrize("native", [*GARBAGE, NO_GROUP], ids=repr)
def test_a_native_form_that_cannot_be_read_is_refused_and_stops_nothing(tmp_path, letters, native):
    given_letters(letters, b"1", b"2")
    first, second = moved(letters, tmp_path)
    outcome = letters.send_back([msgspec.structs.replace(first, native=native), second])
    assert {number: each.refusal for number, each in outcome.refused.items()} == {0: Refusal.UNFIT}
    assert bodies(letters.broker.fetch("orders", 10)) == [b"2"]


@pytest.mark.parametrize("at_once", [60_000, 1_000_000])
def test_bodies_are_read_up_to_the_limit(letters, monkeypatch, at_once):
    contents = [b"%d" % n + bytes(100_000) for n in range(6)]
    given_letters(letters, *contents)
    monkeypatch.setattr(deadletters, "AT_ONCE_BYTES", at_once)
    ask, taken = letters._ask, []

    def watched(command):
        answer = ask(command)
        taken.append(sum(len(each) for _, fields in answer for each in fields))
        return answer

    monkeypatch.setattr(letters, "_ask", watched)
    first = letters.whole(most_bytes=150_000)
    assert [each.letter.body for each in first] == contents[:2]
    assert sum(taken) <= 210_000, "More was read than was asked for"
    assert [each.letter.body for each in letters.whole(after=first[1].letter.id)] == contents[2:]
    assert [each.letter.body for each in letters.whole(after=first[1].letter.id, limit=3)] == contents[2:5]


def test_many_are_sent_in_few_steps(tmp_path, letters, monkeypatch):
    for _ in range(6):
        letters.broker.publish(given.messages("orders", 100))
        given_up(letters.broker, 100)
    stored = moved(letters, tmp_path, limit=1_000)
    asked, try_all = [], letters.broker.connection.try_all
    monkeypatch.setattr(letters.broker.connection, "try_all", lambda key, *all_: asked.append(key) or try_all(key, *all_))
    assert letters.send_back(stored) == STORED
    assert len(asked) == 3
    assert letters.broker.depth("orders").ready == 600


def test_when_the_answer_is_lost_one_is_unknown_and_those_behind_it_are_not_sent(tmp_path, url, letters, monkeypatch):
    monkeypatch.setattr(sending_back, "AT_ONCE", 1)
    given_letters(letters, b"1", b"cut-here", b"3")
    stored = moved(letters, tmp_path)
    with CuttingProxy(url, b"cut-here") as proxy, opened(proxy.url) as broker:
        outcome = RedisDeadLetters(broker, "orders").send_back(stored)
        assert (set(outcome.unknown), {n: each.refusal for n, each in outcome.refused.items()}) == ({1}, {2: Refusal.NOT_SENT})
    assert letters.broker.depth("orders").ready == 2
    assert letters.send_back(stored[1:]) == STORED
    assert bodies(letters.broker.fetch("orders", 10)) == [b"1", b"cut-here", b"3"]


# Letters that another program keeps in a list.


def test_listed_letters_go_back_to_where_they_came_from(tmp_path, tool, listed):
    tool.xadd("mail", {"body": "before"})
    letters = listed(ENVELOPE | {"failed_at": 1}, ENVELOPE | {"original_topic": "mail", "failed_at": 2}, b"\xff no JSON")
    stored = moved(letters, tmp_path)
    assert (letters.count(), tool.exists("dlq:orders")) == (0, 0)
    assert letters.send_back(stored) == STORED
    assert sorted([tool.rpop("orders"), tool.rpop("orders")]) == sorted([BODY, b"\xff no JSON"])
    assert tool.xrevrange("mail", count=1)[0][1].items() >= {b"body": BODY, b"key": b"customer-7"}.items()
    assert tool.llen("orders") == 0


def test_equal_listed_letters_have_no_identity_and_are_sent_each(tmp_path, tool, listed):
    letters = listed(ENVELOPE, ENVELOPE)
    (first,) = moved(letters, tmp_path, limit=1)
    (second,) = moved(letters, tmp_path)
    assert letters.send_back([first, second]) == STORED
    assert tool.lrange("orders", 0, -1) == [BODY, BODY]


def test_a_listed_letter_that_cannot_be_sent_stops_none_of_the_others(tmp_path, tool, listed):
    tool.hset("a hash", "a", "b")
    letters = listed(*[ENVELOPE | {"original_topic": topic, "failed_at": n} for n, topic in enumerate(("a hash", "orders"), 1)])
    first, second = moved(letters, tmp_path)
    outcome = letters.send_back([first, second, msgspec.structs.replace(second, native=b"\xff")])
    assert {number: each.refusal for number, each in outcome.refused.items()} == {0: Refusal.NO_SUCH_SOURCE, 2: Refusal.UNFIT}
    assert tool.lrange("orders", 0, -1) == [BODY]


def test_whole_listed_letters_come_in_pages(listed):
    letters = listed(*[ENVELOPE | {"original_value": f"{n}" + "x" * 1_000, "failed_at": n + 1} for n in range(5)])
    assert [each.letter for each in letters.whole()] == list(letters.browse())
    first = letters.whole(most_bytes=1_500)
    assert [each.letter.body[:1] for each in first] == [b"0", b"1"]
    rest = letters.whole(after=first[-1].letter.id, limit=2)
    assert [each.letter.body[:1] for each in rest] == [b"2", b"3"]
    assert letters.count() == 5


def test_of_a_long_list_only_the_letters_that_are_taken_are_in_memory(tmp_path, listed, monkeypatch):
    letters = listed(*[ENVELOPE | {"original_value": f"{n}" + "x" * 100_000, "failed_at": 9 - n} for n in range(9)])
    monkeypatch.setattr(listed_letters, "WHOLE_BYTES", 150_000)
    ask, taken = letters._ask, []

    def watched(command):
        answer = ask(command)
        if isinstance(answer, list):
            taken.append(sum(len(each) for each in answer if isinstance(each, bytes)))
        return answer

    monkeypatch.setattr(letters, "_ask", watched)
    stored = moved(letters, tmp_path, most_bytes=150_000)
    assert [each.letter.body[:1] for each in stored] == [b"8", b"7"]
    assert max(taken) <= 210_000
    assert letters.count() == 7
