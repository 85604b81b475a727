"""A paused source keeps its partitions, past every timeout, and what was read ahead is left as if it had never been touched.

Neither a kill nor a rebalance in a pause loses a message, repeats one or makes one returned that did not run."""

import threading
import time
from contextlib import suppress

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.contract.kafka_lab import KafkaLab
from unpoison.brokers.kafka import group_member, subscription
from unpoison.brokers.kafka.commit_metadata import decode
from unpoison.brokers.kafka.names import HELD, SUSPECTS
from unpoison.brokers.kafka.partition import SOURCE_PAUSED
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters
from unpoison.port.broker import Forgets, Kept, ReadsAhead, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import Child, Gate


def consumer(lab, ring=lambda: None):
    """A connection that is rung, as that of a consumer: it does not wait until everything is read."""
    return lab.broker("orders", ring=ring)


def fetched(broker, count, at_once=10_000):
    """What is fetched until it is so many."""
    found = []
    wait_until(lambda: found.extend(broker.fetch("orders", at_once)) or len(found) >= count, lambda: f"{len(found)} of {count}")
    return found


def release(broker, deliveries):
    broker.settle(Settlement(kept=[Kept(each, each.counters) for each in deliveries]))


def partitions(broker, member="main"):
    return dict(getattr(broker._subscriptions["orders"], member).assignment.partitions)


def started(broker):
    """How many messages may have been started, as the group has committed it."""
    names, queries = broker.connection.names("orders"), broker.connection.queries
    places = {names.group: (names.topic, broker.topology.partitions(names.topic)), names.retry_group: (names.retry, 11)}
    committed = [
        found
        for group, (topic, count) in places.items()
        for found in queries.committed(group, [(topic, number) for number in range(count)]).values()
    ]
    return sum(len(decode(*each).started) for each in committed)


def retry_copies(broker):
    names = broker.connection.names("orders")
    return sum(broker.connection.queries.ends((names.retry, number) for number in range(11)).values())


def numbers(deliveries):
    return sorted(int(each.body) for each in deliveries)


def test_its_partitions_stay_past_every_timeout_and_no_other_consumer_gets_any(lab, monkeypatch):
    lab.url += "&max.poll.interval.ms=1200"
    broker, other = consumer(lab), consumer(lab)
    broker.publish(given.messages("orders", 20))
    release(broker, fetched(broker, 20))
    kept = partitions(broker)
    broker.pause("orders")
    assert isinstance(broker, ReadsAhead)
    for _ in range(7):
        assert list(other.fetch("orders", 1)) == []
        threading.Event().wait(0.3)  # nothing tells that session, poll interval and give_back are over: they are a second each
    assert partitions(broker) == kept
    broker.resume("orders")
    found = fetched(broker, 20)
    assert (numbers(found), any(each.returned for each in found)) == (list(range(20)), False)


def test_twenty_pauses_charge_nobody_write_no_copy_and_lose_nothing(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path, partitions=3) as lab:
        broker, done = consumer(lab), []
        broker.publish(given.messages("orders", 2_000))
        for _ in range(20):
            found = fetched(broker, 1, at_once=500)
            broker.settle(Settlement(gone=found[:10]))
            done += found[:10]
            release(broker, found[10:])
            broker.pause("orders")
            broker.pause("orders")
            assert started(broker) == 0
            broker.resume("orders")
        done += fetched(broker, 2_000 - len(done))
        assert numbers(done) == list(range(2_000))
        assert not any(each.returned or each.counters != Counters() for each in done)
        assert retry_copies(broker) == 0


def killed_in(hold):
    """Run this in a consumer of its own up to where it opens the gate, and kill it there as the out-of-memory killer would."""
    reached = Gate("reached")

    def work():
        hold(reached)
        threading.Event().wait()

    with Child(work) as child:
        reached.wait()
        child.kill()


def test_a_kill_in_the_middle_of_a_pause_makes_nobody_returned_that_did_not_run(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path, partitions=3) as lab:

        def hold(reached):
            broker = consumer(lab)
            done = fetched(broker, 1, at_once=1)
            broker.settle(Settlement(gone=done))
            again = fetched(broker, 1, at_once=1)
            broker.settle(Settlement(kept=[Kept(again[0], Counters(attempts=1))]))
            fetched(broker, 1, at_once=1)  # runs when the consumer is killed
            are_marked = lambda: sum(len(each.ready) for each in partitions(broker).values()) > 2_000  # noqa: E731
            wait_until(are_marked, lambda: "They are not marked")
            broker.pause("orders")
            reached.open()

        lab.broker("orders").publish(given.messages("orders", 3_000))
        killed_in(hold)
        broker = consumer(lab)
        assert started(broker) == 1
        found = fetched(broker, 2_999)
        assert len({each.id for each in found}) == len(found) == 2_999
        assert [each.returned for each in found].count(True) == 1
        assert [each.counters.attempts for each in found if each.counters.attempts] == [1]


def test_a_kill_in_the_middle_of_a_probe_makes_nobody_else_returned(lab):
    def hold(reached):
        broker = consumer(lab)
        release(broker, fetched(broker, 500))
        broker.pause("orders")
        assert len(fetched(broker, 1, at_once=1)) == 1
        reached.open()

    lab.broker("orders").publish(given.messages("orders", 500))
    killed_in(hold)
    broker = consumer(lab)
    assert started(broker) == 1
    assert [each.returned for each in fetched(broker, 500)].count(True) == 1


def test_a_probe_takes_one_message_and_finds_one_that_came_after_the_pause(lab):
    broker = consumer(lab)
    broker.pause("orders")
    lab.broker("orders").publish(given.messages("orders", 10))
    for number in range(3):
        (probe,) = fetched(broker, 1, at_once=1)
        assert (probe.body, started(broker)) == (b"%d" % number, 1)
        wait_until(lambda: is_read(broker) == [False], lambda: "It reads on")
        broker.settle(Settlement(gone=[probe]))
    broker.resume("orders")
    assert numbers(fetched(broker, 7)) == list(range(3, 10))


def test_a_caller_that_is_not_rung_gets_its_probe_at_once_and_the_rest_after_the_pause(lab):
    broker = lab.broker("orders")
    broker.pause("orders")
    lab.broker("orders").publish(given.messages("orders", 10))
    for number in range(3):
        (probe,) = broker.fetch("orders", 1)
        assert (probe.body, started(broker)) == (b"%d" % number, 1)
        broker.settle(Settlement(gone=[probe]))
    broker.resume("orders")
    assert numbers(broker.fetch("orders", 100)) == list(range(3, 10))


def test_a_probe_that_waits_here_as_a_retry_does_not_wait_for_the_source_to_be_read(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    broker.settle(Settlement(kept=[Kept(each, Counters(attempts=1)) for each in broker.fetch("orders", 1)]))
    release(broker, broker.fetch("orders", 1))
    broker.pause("orders")
    lab.broker("orders").publish(given.messages("orders", 3, first=1))
    began = time.monotonic()
    (probe,) = broker.fetch("orders", 1)
    assert time.monotonic() - began < subscription.READ_WITHIN / 2
    assert (probe.body, probe.counters.attempts, is_read(broker)) == (b"0", 1, [False])


def is_read(broker):
    """Of each partition of the source, whether the client reads it."""
    return [SOURCE_PAUSED not in each.pauses for each in partitions(broker).values()]


def test_a_probe_finds_a_retry_that_came_due_and_the_others_wait_for_the_end_of_the_pause(lab):
    broker = consumer(lab)
    broker.publish([*given.messages("orders", 1, delay=3000), *given.messages("orders", 2, first=1, delay=5000)])
    wait_until(lambda: not broker.fetch("orders", 1) and rests(broker) == 3, lambda: "They are not read")
    broker.pause("orders")
    lab.shift_clock(6000)
    (probe,) = fetched(broker, 1, at_once=1)
    assert started(broker) == 1
    broker.settle(Settlement(kept=[Kept(probe, Counters(attempts=1), 600)]))
    broker.resume("orders")
    found = fetched(broker, 2)
    assert {each.body for each in [probe, *found]} == {b"0", b"1", b"2"}
    assert not any(each.returned for each in found)


def rests(broker):
    return sum(len(each.resting) for each in partitions(broker, "retry").values())


def test_who_stops_asking_leaves_nothing_about_to_start(lab, monkeypatch):
    monkeypatch.setattr(group_member, "ASKED_FOR", 0.3)
    broker = consumer(lab)
    release(broker, fetched(lab_published(lab, broker, 5), 5))
    broker.pause("orders")
    broker.fetch("orders", 1)
    wait_until(lambda: started(broker) == 1, lambda: "It asks for none")
    wait_until(lambda: started(broker) == 0, lambda: "One is about to start, and nobody wants it")
    broker.resume("orders")
    assert numbers(fetched(broker, 5)) == list(range(5))


def lab_published(lab, broker, count):
    broker.publish(given.messages("orders", count))
    return broker


def test_partitions_that_come_and_go_in_a_pause_are_not_read_and_none_of_their_messages_is_lost_or_repeated(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path, partitions=6) as lab:
        one, other = consumer(lab), consumer(lab)
        one.publish(given.messages("orders", 3_000))
        done = fetched(one, 300)
        one.settle(Settlement(gone=done))
        one.pause("orders")
        mine = partitions(one)
        other.pause("orders")
        wait_until(lambda: len(partitions(one)) == len(partitions(other)) == 3, lambda: "They are not shared out")
        assert all(each is mine[number] for number, each in partitions(one).items())
        wait_until(lambda: is_read(other) == [False] * 3, lambda: "It reads what came in the pause")
        assert started(one) == 0
        (probe,) = fetched(other, 1, at_once=1)
        other.settle(Settlement(gone=[probe]))
        other.close()
        wait_until(lambda: is_read(one) == [False] * 6, lambda: "It reads what came in the pause")
        one.resume("orders")
        done += [probe, *fetched(one, 3_000 - len(done) - 1)]
        assert numbers(done) == list(range(3_000))
        assert not any(each.returned for each in done)
        assert retry_copies(one) == 0


def test_a_consumer_that_begins_in_a_pause_joins_and_starts_nothing_before_its_end(lab):
    broker = consumer(lab)
    broker.publish(given.messages("orders", 3))
    broker.pause("orders")
    wait_until(lambda: is_read(broker) == [False], lambda: "It does not join")
    assert broker.connection.queries.members(broker.connection.names("orders").group) == {broker.connection.name}
    broker.resume("orders")
    assert numbers(fetched(broker, 3)) == [0, 1, 2]


def test_suspects_and_what_others_hold_are_seen_in_a_pause(lab):
    broker = consumer(lab)
    (message,) = fetched(lab_published(lab, broker, 1), 1)
    broker.pause("orders")
    wait_until(lambda: len(partitions(broker, "retry")) == 11, lambda: "It does not join")
    broker.settle(Settlement(kept=[Kept(message, Counters(vanished=2, alone=True))]))
    wait_until(lambda: broker.has_suspect("orders"), lambda: "It is not seen")
    stopped = {number for number, each in partitions(broker, "retry").items() if SOURCE_PAUSED in each.pauses}
    assert stopped == set(range(11)) - {SUSPECTS, HELD}
    assert broker.take_suspect("orders", "here").body == b"0"


def set_for(broker, **settings):
    """Set what an administrator sets for the topic, and return once it is in force."""
    topic, admin = broker.connection.names("orders").topic, broker.connection.queries.admin
    changes = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    for answer in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)]
    ).values():
        answer.result(10)

    def is_in_force():
        (answer,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return all(answer.result(10)[each.name].value == each.value for each in changes)

    wait_until(is_in_force, lambda: "It is not in force")


def test_how_long_a_waiting_message_is_kept_is_what_the_topic_says(lab):
    broker = lab.broker("orders")
    assert isinstance(broker, Forgets)
    for settings, seconds in (
        ({"retention_ms": "90500"}, 90.5),
        ({"cleanup_policy": "compact,delete"}, 90.5),
        ({"cleanup_policy": "compact"}, None),
        ({"cleanup_policy": "delete", "retention_ms": "-1"}, None),
    ):
        set_for(broker, **settings)
        assert broker.deletes_after("orders") == seconds
    with pytest.raises(BrokerUnavailable, match=r"asking for how long topic .*nowhere' keeps messages"):
        broker.deletes_after("nowhere")


@pytest.mark.long
@pytest.mark.servers("kafka")
@pytest.mark.parametrize("begins", ["before", "meanwhile"])
def test_a_server_that_is_gone_for_longer_than_a_session_in_a_pause_makes_nobody_returned(tmp_path, private_server, begins):
    server = private_server("kafka")
    with KafkaLab(server, tmp_path, partitions=3) as lab:
        broker = consumer(lab)
        broker.publish(given.messages("orders", 1_000))
        release(broker, fetched(broker, 1_000))
        if begins == "before":
            broker.pause("orders")
        before = partitions(broker)
        with server.down():
            broker.pause("orders")
            threading.Event().wait(2.0)  # nothing tells that a session is over: it is a second long
        here = partitions
        wait_until(lambda: len(here(broker)) == 3 and here(broker) != before, lambda: f"{here(broker)} are the partitions")
        wait_until(lambda: is_read(broker) == [False] * 3, lambda: "It reads what came back in the pause")
        broker.resume("orders")
        found = patiently_fetched(broker, 1_000)
        assert (numbers(found), any(each.returned for each in found)) == (list(range(1_000)), False)


def patiently_fetched(broker, count):
    """As `fetched`, while it is reported that no server has answered."""
    found = []

    def all_came():
        with suppress(BrokerUnavailable):
            found.extend(broker.fetch("orders", 10_000))
        return len(found) >= count

    wait_until(all_came, lambda: f"{len(found)} of {count}")
    return found
