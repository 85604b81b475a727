"""What if others use the stream too: other groups, other producers, people with redis-cli, a MAXLEN? Nobody loses anything."""

import pytest

from tests.fault.redis.redis_parts import bodies, opened, raw
from unpoison import App
from unpoison.brokers.redis import deadletters
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.errors import BrokerUnavailable, ConfigError, OwnershipLost, Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Dead, Depth, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.running import Journal, drained


@pytest.fixture
def url(redis):
    return redis.fresh()


def test_finished_entries_are_removed_so_that_the_stream_does_not_grow_for_ever(url):
    with opened(url) as broker, raw(url) as look:
        broker.publish(given.messages("orders", 50))
        held = broker.fetch("orders", 50)
        broker.settle(
            Settlement(
                gone=held[:40], kept=[Kept(held[40], Counters(attempts=1))], dead=[Dead(held[41], given.letter_of(held[41]))]
            )
        )
        assert look.xlen("orders") == 8
        assert look.xpending("orders", "unpoison")["pending"] == 8
        assert look.xlen("dlq:orders") == 1


def test_only_the_latest_letters_that_were_replayed_or_discarded_are_kept(url, monkeypatch):
    monkeypatch.setattr(deadletters, "HISTORY", 2)
    with opened(url) as broker, raw(url) as look:
        broker.publish(given.messages("orders", 8))
        ids = broker.settle(Settlement(dead=[Dead(each, given.letter_of(each)) for each in broker.fetch("orders", 8)]))
        letters = deadletters.RedisDeadLetters(broker, "orders")
        letters.replay(ids[:3])
        letters.remove(ids[3:6], keep_as="discarded")
        kept = {state: list(letters.ids(state=state)) for state in ("replayed", "discarded", "dead")}
        assert kept == {"replayed": ids[1:3], "discarded": ids[4:6], "dead": ids[6:]}
        assert look.hlen("unpoison:orders:dlq:history") == 4


def test_two_groups_handle_each_message_once_while_one_retries_dead_letters_and_replays(url):
    """Test 9 of the list: a retry, a letter and a replay of one group are no second message for the other."""
    seen: dict[str, list[int]] = {"billing": [], "shipping": []}

    def app(group: str, may_fail: bool = True) -> App:
        def handle(number: int, delivery: Delivery) -> None:
            if may_fail and group == "billing" and (number == 3 or (number % 2 and delivery.attempt == 1)):
                raise ConnectionError("not now")
            seen[group].append(number)

        options = {"max_attempts": 2, "backoff": Backoff.immediate()}
        return given.consumer(App(f"{url}?group={group}"), "orders", handle, **options)

    for group in seen:
        with opened(f"{url}?group={group}"):
            pass  # the group is there from now on
    billing, shipping = app("billing"), app("shipping")
    billing.publish_many("orders", range(10))
    billing.publish("orders", 10, delay=0.1)
    drained(billing)
    with raw(url) as look:
        assert look.xlen("orders") == 11, "entries that the other group has not read were removed"
    drained(shipping)
    assert sorted(seen["billing"]) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert sorted(seen["shipping"]) == list(range(11))
    assert [letter.body for letter in shipping.dlq("orders").letters()] == [b"3"]
    assert shipping.dlq("orders").replay_all().count == 1  # whoever replays it, it goes back to the group that gave it up
    drained(shipping)
    assert len(seen["shipping"]) == 11
    drained(app("billing", may_fail=False))
    assert sorted(seen["billing"]) == list(range(11))
    assert sorted(seen["shipping"]) == list(range(11))
    for each in (billing, shipping):
        each.close()


def test_an_entry_that_a_tool_has_claimed_is_not_settled_and_the_rest_of_the_batch_comes_back(url):
    with opened(url) as broker, opened(url) as other, raw(url) as tool:
        broker.publish(given.messages("orders", 4))
        held = broker.fetch("orders", 4)
        tool.xclaim("orders", "unpoison", "somebody", 0, [held[1].receipt.no])
        with pytest.raises(OwnershipLost):
            broker.settle(Settlement(gone=held[:2]))
        assert [entry["message_id"] for entry in tool.xpending_range("orders", "unpoison", "-", "+", 10)] == [held[1].receipt.no]
        assert sorted(bodies(other.fetch("orders", 10))) == [b"2", b"3"]


def test_a_settle_whose_answer_was_lost_can_be_repeated(url):
    with opened(url) as broker:
        broker.publish(given.messages("orders", 6))
        held = broker.fetch("orders", 6)
        kept = [Kept(held[0], Counters(attempts=1))]
        settlement = Settlement(gone=held[2:], kept=kept, dead=[Dead(held[1], given.letter_of(held[1]))])
        broker.settle(settlement)
        broker.settle(settlement)
        assert broker.depth("orders") == Depth(ready=1, dead=1)
        (again,) = broker.fetch("orders", 10)
        broker.settle(Settlement(gone=[again]))
        broker.settle(Settlement(gone=[again]))
        assert broker.depth("orders") == Depth(dead=1)


def test_what_maxlen_took_from_a_consumer_that_vanished_is_said_and_the_rest_comes_back(url):
    with opened(url) as other, raw(url) as tool:
        with opened(url) as broker:
            broker.publish(given.messages("orders", 5))
            broker.fetch("orders", 5)
            tool.xtrim("orders", maxlen=2, approximate=False)
        with Journal() as journal:
            assert sorted(bodies(other.fetch("orders", 10))) == [b"3", b"4"]
        (said,) = journal.errors()
        assert "3 messages" in said
        assert "MAXLEN" in said
        assert other.depth("orders") == Depth(leased=2)


def test_a_retry_is_out_of_reach_of_maxlen(url):
    with opened(url) as broker, raw(url) as tool:
        broker.publish(given.messages("orders", 1))
        (held,) = broker.fetch("orders", 1)
        broker.settle(Settlement(kept=[Kept(held, Counters(attempts=1))]))
        tool.xtrim("orders", maxlen=0, approximate=False)
        assert bodies(broker.fetch("orders", 1)) == [b"0"]


def test_the_depth_is_right_though_entries_were_trimmed_or_removed_unread(url):
    with opened(url) as broker, raw(url) as tool:
        broker.publish(given.messages("orders", 9))
        held = broker.fetch("orders", 2)
        tool.xtrim("orders", maxlen=4, approximate=False)
        assert broker.depth("orders") == Depth(ready=4, leased=2)
        tool.xdel("orders", tool.xrange("orders")[1][0])
        assert broker.depth("orders") == Depth(ready=3, leased=2)
        broker.settle(Settlement(gone=held))
        broker.settle(Settlement(gone=broker.fetch("orders", 10)))
        assert broker.depth("orders") == Depth()


def test_old_entries_that_another_program_only_acknowledged_are_not_counted(url):
    with raw(url) as tool:
        for number in range(3):
            tool.xadd("orders", {"body": number})
        tool.xgroup_create("orders", "unpoison", "0")
        tool.xreadgroup("unpoison", "before", {"orders": ">"})
        tool.xack("orders", "unpoison", *[id_ for id_, _ in tool.xrange("orders")])
    with opened(url) as broker:
        assert broker.depth("orders") == Depth()
        broker.publish(given.messages("orders", 1))
        assert broker.depth("orders") == Depth(ready=1)


def test_entries_of_other_programs_are_read_as_they_are_and_keep_their_fields(url):
    with opened(url) as broker, raw(url) as tool:
        tool.xadd("orders", {"order": "7", "total": "9.99"})
        tool.xadd("orders", {"body": b"\xff\x00", "trace": "abc", "key": "k"})
        tool.xadd("orders", {"body": "x", "headers": "no JSON"})
        plain, odd, unreadable = broker.fetch("orders", 10)
        assert (plain.body, dict(plain.headers)) == (b'{"order":"7","total":"9.99"}', {})
        assert (odd.body, odd.key, dict(odd.headers)) == (b"\xff\x00", "k", {"trace": "abc"})
        assert dict(unreadable.headers) == {"headers": "no JSON"}
        broker.settle(Settlement(gone=[unreadable], kept=[Kept(odd, odd.counters)], dead=[Dead(plain, given.letter_of(plain))]))
        (again,) = broker.fetch("orders", 10)
        assert (again.id, again.body, again.key, dict(again.headers)) == (odd.id, odd.body, odd.key, dict(odd.headers))
        broker.settle(Settlement(gone=[again]))
    app = App(url)
    (letter,) = app.dlq("orders").peek()
    assert letter.original == {"source": "orders", "entry": plain.id}
    assert app.dlq("orders").replay_one()
    app.close()
    with opened(url) as broker:
        (replayed,) = broker.fetch("orders", 10)
        assert (replayed.id, replayed.body, replayed.receipt.fields) == (plain.id, plain.body, plain.receipt.fields)


def test_an_entry_with_very_many_fields_is_taken_over_like_any_other(url):
    fields = {f"f{n}": str(n) for n in range(12_000)}
    with opened(url) as other, raw(url) as tool:
        with opened(url) as broker:
            tool.xadd("orders", fields)
            broker.publish(given.messages("orders", 1))
            assert len(broker.fetch("orders", 10)) == 2
        large, small = other.fetch("orders", 10)
        assert (len(large.receipt.fields), small.body) == (24_000, b"0")


def test_a_group_that_was_destroyed_is_created_again_and_said(url):
    with opened(url) as broker, raw(url) as tool, Journal() as journal:
        broker.publish(given.messages("orders", 2))
        tool.xgroup_destroy("orders", "unpoison")
        with pytest.raises(BrokerUnavailable, match="Retrying"):
            broker.fetch("orders", 10)
        assert bodies(broker.fetch("orders", 10)) == [b"0", b"1"]
        assert "Creating it again" in journal.errors()[0]


REFUSED = {
    "a list under the name of the dead letters": (
        lambda tool: tool.lpush("dlq:orders", "x"),
        "",
        "RENAME dlq:orders dlq:orders:old",
    ),
    "a list": (lambda tool: tool.lpush("orders", "x"), "", "list=orders"),
    "a stream that the URL calls a list": (lambda tool: tool.xadd("orders", {"a": 1}), "?list=orders", "Leave list=orders out"),
    "something else": (lambda tool: tool.set("orders", "x"), "", "RENAME orders orders:old"),
}


@pytest.mark.parametrize(("prepare", "query", "cure"), REFUSED.values(), ids=REFUSED)
def test_what_is_in_the_way_is_refused_with_the_cure_and_left_alone(url, prepare, query, cure):
    with raw(url) as tool:
        prepare(tool)
        before = {key: tool.dump(key) for key in tool.scan_iter()}
        with pytest.raises(ConfigError, match=cure):
            RedisBroker(url + query).open(["orders"])
        assert {key: tool.dump(key) for key in tool.scan_iter()} == before
        if "dlq" in cure:
            tool.rename("dlq:orders", "dlq:orders:old")
            with opened(url) as broker:
                assert broker.depth("orders") == Depth()


def test_without_create_nothing_is_made_and_the_command_is_said(url):
    with raw(url) as tool:
        with pytest.raises(ConfigError, match="XGROUP CREATE orders unpoison 0 MKSTREAM"):
            RedisBroker(url).open(["orders"], create=False)
        assert list(tool.scan_iter()) == []
        tool.execute_command("XGROUP CREATE", "orders", "unpoison", "0", "MKSTREAM")
    with opened(url, create=False) as broker:
        broker.publish(given.messages("orders", 1))
        assert bodies(broker.fetch("orders", 10)) == [b"0"]


def test_the_number_in_the_stream_is_native_as_long_as_the_stream_has_given_it(url):
    """A replayed letter has a number of ours, which nobody finds anywhere."""
    seen = []

    def handle(body: bytes, delivery: Delivery) -> None:
        seen.append(delivery.native.properties["stream_id"])
        raise ConnectionError if delivery.attempt == 1 else Permanent("as asked")

    app = given.consumer(App(url), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    with raw(url) as client:
        entry = client.xadd("orders", {"body": b"1"}).decode()
    drained(app)
    assert seen == [entry, entry]
    app.dlq("orders").replay_all()
    drained(app)
    assert seen == [entry, entry, None, None]
    app.close()
