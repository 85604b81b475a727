"""What the usual Kafka consumer does wrong, and what a group does to one that is slow, paused, killed or moved: none of it loses,
repeats or skips a message here."""

import signal
import threading
from contextlib import closing

import pytest
from confluent_kafka import Producer

from tests.contract.kafka_lab import KafkaLab
from unpoison import App
from unpoison.body.payload import new_id
from unpoison.brokers import findings_for
from unpoison.brokers.kafka import group_member, reading, settings
from unpoison.brokers.kafka.commit_metadata import split_topic_id
from unpoison.brokers.kafka.committing import Commits
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.group_member import GroupMember
from unpoison.brokers.kafka.url import address
from unpoison.errors import BrokerUnavailable, ConfigError, OwnershipLost, Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery, Outgoing
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import Child, Gate
from unpoison.testing.running import drained


def committed(broker, source="orders"):
    """The offset, and the text without the id of the topic, which is another one each time."""
    names = broker.connection.names(source)
    offset, metadata = broker.connection.queries.committed(names.group, [(names.topic, 0)])[names.topic, 0]
    text, topic_id = split_topic_id(metadata)
    assert topic_id
    return offset, text


def test_a_failed_message_is_started_again_while_its_consumer_lives(lab):
    starts = []

    def handle(number: int, delivery: Delivery) -> None:
        starts.append((number, delivery.attempt))
        if number == 0 and delivery.attempt == 1:
            raise ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.immediate())
    app.publish_many("orders", range(3))
    drained(app)
    assert sorted(starts) == [(0, 1), (0, 2), (1, 1), (2, 1)]


def test_a_later_message_that_is_done_does_not_take_an_earlier_one_with_it(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 10))
    deliveries = broker.fetch("orders", 10)
    broker.settle(Settlement(gone=deliveries[1:]))
    broker.close()
    assert committed(broker) == (0, "unpoison/1 A9.")
    assert [each.body for each in lab.broker("orders").fetch("orders", 10)] == [b"0"]


def test_a_count_outlives_its_process(lab):
    def hold():
        lab.broker("orders").fetch("orders", 10)
        holding.open()
        threading.Event().wait()

    lab.broker("orders").publish(given.messages("orders", 1))
    for lost in (0, 1, 2):
        holding = Gate("holding")
        with Child(hold) as child:
            holding.wait()
            child.kill()
        broker = lab.broker("orders")
        assert committed(broker)[1] == ("unpoison/1 1A", "unpoison/1 B", "unpoison/1 C")[lost]


def test_no_handler_starts_before_the_mark_above_it_is_confirmed(lab, monkeypatch):
    answer, answers = Commits.on_commit, []
    monkeypatch.setattr(Commits, "on_commit", lambda commits, *told: answers.append((commits, told)))
    broker, taken = lab.broker("orders", ring=lambda: None), []
    broker.publish(given.messages("orders", 50))
    topic = broker.connection.names("orders").topic

    def the_server_has_answered():
        taken.extend(broker.fetch("orders", 50))
        return any(place.topic == topic for _, (_, places) in answers for place in places)

    wait_until(the_server_has_answered, lambda: "No mark was committed")
    assert list(broker.fetch("orders", 50)) == taken == [], "started before anybody here knew of the answer"
    assert committed(broker)[1].endswith("A")
    monkeypatch.undo()
    for commits, told in answers:
        answer(commits, *told)
    broker.close()
    assert len(lab.broker("orders").fetch("orders", 50)) == 50


def test_a_record_that_no_text_can_hold_becomes_a_letter_bit_for_bit(lab):
    lab.broker("orders")
    where = address(lab.url)
    key, body, headers = bytes([0xFF, 0, 1]), bytes(range(256)), [("raw", b"\xff\x00"), ("none", None), ("raw", b"twice")]
    producer = Producer(where.options)
    producer.produce(f"{where.prefix}orders", body, key, headers=headers)
    producer.produce(f"{where.prefix}orders", None, b"tombstone")
    producer.flush()

    def fail(body: bytes) -> None:
        raise Permanent("no")

    drained(given.consumer(lab.app(), "orders", fail))
    poison, tombstone = lab.dlq("orders").peek()
    assert (poison.body, tombstone.body, tombstone.message.key) == (body, b"", "tombstone")
    broker = lab.broker("orders")
    stored, _ = broker.reader.read({(f"{where.prefix}orders.dlq", 0): (0, 2)})
    assert (stored.key(), stored.value()) == (key, body)
    assert [pair for pair in stored.headers() if not pair[0].startswith("x-")] == headers
    sent, _ = broker.reader.read({(f"{where.prefix}orders", 0): (0, 2)})
    assert dict(stored.headers())["x-unpoison-timestamp"] == str(sent.timestamp()[1]).encode()


def test_another_group_sees_each_message_once_whatever_becomes_of_it_in_this_one(lab):
    url, seen = lab.url, {"billing": [], "mail": []}

    def consume(group):
        lab.url = f"{url}&group={group}"

        def handle(body: bytes, delivery: Delivery) -> None:
            seen[group].append(body)
            if group == "billing" and delivery.counters.replays == 0:
                raise ConnectionError("never works the first time")

        drained(given.consumer(lab.app(), "orders", handle, max_attempts=2, backoff=Backoff.immediate()))

    lab.broker("orders").publish(given.messages("orders", 1))
    consume("billing")
    consume("mail")
    lab.dlq("orders").replay_all()  # by somebody whose URL has the other group
    consume("mail")
    consume("billing")
    assert seen == {"billing": [b"0", b"0", b"0"], "mail": [b"0"]}


def test_a_rebalance_in_the_middle_of_a_batch_repeats_nothing(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path, partitions=8) as lab:
        one, other = lab.broker("orders"), lab.broker("orders")
        one.publish(given.messages("orders", 40))
        held = list(one.fetch("orders", 40))
        assert len(held) == 40
        wait_until(lambda: other.fetch("orders", 1) or _moved(held), lambda: "No partition moved")
        one.publish(given.messages("orders", 40, first=100))
        one.settle(Settlement(gone=held))
        new: list[bytes] = []

        def all_new_came():
            for broker in (one, other):
                taken = broker.fetch("orders", 10)
                new.extend(each.body for each in taken)
                broker.settle(Settlement(gone=taken))
            return len(new) >= 40

        wait_until(all_new_came, lambda: f"Only {len(new)} of 40 came")
        assert sorted(new) == sorted(str(number).encode() for number in range(100, 140))
        wait_until(lambda: not other.fetch("orders", 10) and other.depth("orders").empty, lambda: str(other.depth("orders")))


def test_partitions_that_stay_are_not_taken_away_while_others_move(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path, partitions=8) as lab:
        one, other = (lab.broker("orders", ring=lambda: None) for _ in range(2))
        wait_until(lambda: one.fetch("orders", 1) or len(_partitions(one, "main")) == 8, lambda: "One has not got all")
        before = dict(_partitions(one, "main"))

        def are_shared_out():
            one.fetch("orders", 1)
            other.fetch("orders", 1)
            return len(_partitions(one, "main")) == len(_partitions(other, "main")) == 4

        wait_until(are_shared_out, lambda: f"{len(_partitions(one, 'main'))} and {len(_partitions(other, 'main'))} partitions")
        assert all(part is before[number] for number, part in _partitions(one, "main").items())


def test_what_a_killed_consumer_held_of_partitions_that_had_moved_comes_back(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path, partitions=8) as lab:
        holding, moved = Gate("holding"), Gate("moved")

        def hold():
            broker = lab.broker("orders")
            held = broker.fetch("orders", 40)
            holding.open()
            wait_until(lambda: _moved(held), lambda: "No partition moved")
            moved.open()
            threading.Event().wait()

        lab.broker("orders").publish(given.messages("orders", 40))
        taken: dict[bytes, bool] = {}
        with Child(hold) as child:
            holding.wait()
            broker = lab.broker("orders")
            assert list(broker.fetch("orders", 10)) == []
            moved.wait()
            child.kill()

        def all_came():
            found = broker.fetch("orders", 40)
            taken.update((each.body, each.returned) for each in found)
            broker.settle(Settlement(gone=found))
            return len(taken) == 40

        wait_until(all_came, lambda: f"Only {len(taken)} of 40 came back")
        assert all(taken.values())


def test_a_consumer_that_was_frozen_settles_nothing_that_others_have(lab):
    holding, goes_on = Gate("holding"), Gate("goes on")

    def hold():
        broker = lab.broker("orders")
        held = broker.fetch("orders", 10)
        holding.open()
        goes_on.wait()
        wait_until(lambda: not all(broker._subscriptions["orders"].is_held(each.receipt) for each in held), lambda: "not told")
        with pytest.raises(OwnershipLost):
            broker.settle(Settlement(gone=held))

    lab.broker("orders").publish(given.messages("orders", 3))
    with Child(hold) as child:
        holding.wait()
        child.send(signal.SIGSTOP)
        broker, taken = lab.broker("orders"), []
        wait_until(lambda: taken.extend(broker.fetch("orders", 10)) or len(taken) == 3, lambda: f"Only {len(taken)} came")
        assert all(each.returned for each in taken)
        child.send(signal.SIGCONT)
        goes_on.open()
        assert child.wait() == 0
    broker.settle(Settlement(gone=taken))
    assert broker.depth("orders").empty


def test_a_handler_longer_than_the_poll_interval_keeps_its_partition(lab):
    lab.url += "&max.poll.interval.ms=1000"
    broker, other = lab.broker("orders"), lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    held = broker.fetch("orders", 10)
    assert list(other.fetch("orders", 10)) == []
    threading.Event().wait(2.5)  # nothing tells that an interval has passed
    assert not held[0].receipt.partition.is_lost
    broker.settle(Settlement(gone=held))
    assert broker.depth("orders").empty


def test_a_static_member_that_was_killed_has_its_messages_back_before_its_session_ends(lab):
    lab.url = lab.url.replace("session_timeout=1.0", "session_timeout=300") + "&instance=worker-1"

    def hold():
        lab.broker("orders").fetch("orders", 10)
        holding.open()
        threading.Event().wait()

    holding = Gate("holding")
    lab.broker("orders").publish(given.messages("orders", 2))
    with Child(hold) as child:
        holding.wait()
        child.kill()
    broker = lab.broker("orders", "others")
    found = broker.fetch("orders", 10)
    assert [(each.body, each.returned) for each in found] == [(b"0", True), (b"1", True)]
    broker.publish(given.messages("others", 1))
    wait_until(lambda: broker.fetch("others", 10), lambda: "Two sources of one process got in each other's way")
    broker.settle(Settlement(gone=found))
    assert broker.depth("orders").empty


def test_the_first_of_two_under_one_name_is_shut_out_and_says_so(lab):
    lab.url += "&instance=worker-1"
    one, other = (lab.broker("orders", ring=lambda: None) for _ in range(2))
    one.publish(given.messages("orders", 1))
    held, taken = [], []
    wait_until(lambda: held.extend(one.fetch("orders", 1)) or held, lambda: "Nothing came")
    wait_until(lambda: taken.extend(other.fetch("orders", 1)) or taken, lambda: "The second one got nothing")
    wait_until(lambda: _moved(held), lambda: "The first one believes that it has the message")
    with pytest.raises(OwnershipLost):
        one.settle(Settlement(gone=held))
    with pytest.raises(BrokerUnavailable, match="give each its own"):
        one.fetch("orders", 1)
    other.settle(Settlement(gone=taken))
    assert other.depth("orders").empty


def test_a_slow_head_with_every_second_one_done_behind_it_fits_into_the_metadata(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 6000))
    taken: list[Delivery] = []
    while found := broker.fetch("orders", 1000):
        taken += found
        broker.settle(Settlement(gone=found[1::2]))
    assert len(taken) > 1000, "the window is smaller than is told"
    broker.close()
    assert len(committed(broker)[1]) <= 4_095
    back, again = lab.broker("orders"), []
    while found := back.fetch("orders", 1000):
        again += found
        back.settle(Settlement(gone=found))
    unsettled = {each.body for each in taken} - {each.body for index, each in enumerate(taken) if index % 2}
    assert {each.body for each in again} >= unsettled
    assert len(again) + len(taken) >= 6000


def test_thousands_that_wait_hold_up_nobody_and_do_not_fill_the_memory(lab):
    broker = lab.broker("orders")
    late = [*given.messages("orders", 2500, delay=3000), *given.messages("orders", 3, first=5000, delay=7000)]
    broker.publish([*late, *given.messages("orders", 1, first=9000)])
    (now,) = broker.fetch("orders", 10)
    broker.settle(Settlement(kept=[Kept(now, Counters(attempts=1))]))
    (again,) = broker.fetch("orders", 10)
    assert (again.body, again.attempt) == (b"9000", 2)
    parts = broker._subscriptions["orders"].retry.assignment.partitions.values()
    wait_until(lambda: any(part.is_paused for part in parts), lambda: "It reads on")
    assert max(len(part.resting) for part in parts) <= 1500
    lab.shift_clock(3500)
    came = []
    wait_until(lambda: came.extend(broker.fetch("orders", 1000)) or len(came) == 2500, lambda: f"Only {len(came)} came")
    assert len({each.body for each in came}) == 2500


def test_a_partition_that_was_paused_and_lost_is_read_on_when_it_comes_back(lab):
    broker, now, came = lab.broker("orders", ring=lambda: None), [], []
    broker.publish([*given.messages("orders", 2500, delay=3000), *given.messages("orders", 1, first=9000)])
    wait_until(lambda: now.extend(broker.fetch("orders", 1)) or now, lambda: "Nothing came")
    wait_until(lambda: any(part.is_paused for part in _partitions(broker, "retry").values()), lambda: "It reads on")
    broker.settle(Settlement(kept=[Kept(now[0], Counters(attempts=1))]))
    wait_until(lambda: not _partitions(broker, "retry"), lambda: "It keeps what nobody fetches")
    lab.shift_clock(3500)
    wait_until(lambda: came.extend(broker.fetch("orders", 1000)) or len(came) >= 2501, lambda: f"Only {len(came)} came")
    assert len({each.body for each in came}) == len(came) == 2501


def test_large_messages_that_wait_for_a_long_handler_do_not_fill_the_memory(lab, monkeypatch):
    polls: list[int] = []
    poll = GroupMember._poll
    monkeypatch.setattr(group_member, "SERVE_EVERY", 0.01)
    monkeypatch.setattr(GroupMember, "_poll", lambda member, *given: polls.append(1) or poll(member, *given))
    broker, running = lab.broker("orders", ring=lambda: None), []
    for number in range(20):
        broker.publish([Outgoing(new_id(), "orders", b"%d" % number + b"x" * 5 * 1024 * 1024)])
    wait_until(lambda: running.extend(broker.fetch("orders", 1)) or running, lambda: "Nothing came")
    subscription = broker._subscriptions["orders"]

    def is_paused():
        subscription.begin(fetching=True)
        return any(part.is_paused for part in _partitions(broker, "main").values())

    wait_until(is_paused, lambda: "It reads on")
    polls.clear()
    wait_until(lambda: is_paused() and len(polls) > 100, lambda: "It does not poll")
    # Nearly full, a member takes all that its client has read ahead, which is a fetch more than it may queue.
    most = reading.MAX_BYTES + settings.READ_AHEAD * 1024 + settings.FETCH_BYTES
    assert sum(part.size for part in _partitions(broker, "main").values()) <= most
    broker.settle(Settlement(gone=running))
    came: list[Delivery] = []

    def all_came():
        found = broker.fetch("orders", 20)
        came.extend(found)
        broker.settle(Settlement(gone=found))
        return len(came) == 19

    wait_until(all_came, lambda: f"Only {len(came)} came")
    assert sorted(each.body[:2].rstrip(b"x") for each in came) == sorted(b"%d" % number for number in range(1, 20))


def test_one_whose_time_comes_later_but_stands_earlier_outlives_its_consumer(lab):
    both_wait = Gate("both wait")

    def hold():
        broker = lab.broker("orders", ring=lambda: None)
        broker.publish([*given.messages("orders", 1, delay=0.9), *given.messages("orders", 1, first=1, delay=0.3)])
        source = broker._subscription("orders")
        source.retry.is_waited_for = True
        source.begin(fetching=True)
        parts = source.retry.assignment.partitions
        wait_until(lambda: 1 in parts and len(parts[1].ready) == 2, lambda: "Their time does not come")
        source.retry.commits.require()
        both_wait.open()
        threading.Event().wait()

    lab.broker("orders")
    with Child(hold) as child:
        both_wait.wait()
        child.kill()
    broker, came = lab.broker("orders"), set()
    wait_until(lambda: came.update(each.body for each in broker.fetch("orders", 10)) or len(came) == 2, lambda: f"Only {came}")


def _partitions(broker, member):
    return getattr(broker._subscriptions["orders"], member).assignment.partitions


def _moved(deliveries):
    return any(each.receipt.partition.is_lost for each in deliveries)


def test_publishing_and_looking_need_no_group(lab):
    """Only what waits for a group does: a delay, and a letter that says nothing of the group that gave it up."""
    with closing(App(lab.url.replace("&group=unpoison", ""))) as stranger:
        stranger.publish("orders", 1)
        made = [name for name in stranger_topics(lab) if "orders" in name]
        assert made == [f"{address(lab.url).prefix}orders"]  # nothing that a consumer would need is guessed at
        with pytest.raises(ConfigError, match=r"names no consumer group.*\?group=billing"):
            stranger.publish("orders", 2, delay=60)

        def fail(body: bytes) -> None:
            raise Permanent("no")

        drained(given.consumer(lab.app(), "orders", fail))
        letters = stranger.dlq("orders")
        assert [letter.body for letter in letters.peek()] == [b"1"]
        assert findings_for(stranger.settings.url, ["orders"]) == findings_for(lab.url, ["orders"]) == []
        assert letters.replay_one()
    seen = []
    drained(given.consumer(lab.app(), "orders", seen.append))
    assert seen == [1]


def stranger_topics(lab):
    """Those of this lab: others work on the same server."""
    connection = Connection(address(lab.url))
    return [
        name for name in connection.queries.admin.list_topics(timeout=10).topics if name.startswith(connection.address.prefix)
    ]
