"""While a source is paused no more is read or about to start than is asked for, whatever else stops or starts its partitions."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka_records import Read
from unpoison.brokers.kafka import broker as broker_module
from unpoison.brokers.kafka import group_member, reading
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.committing import Commits
from unpoison.brokers.kafka.errors import ConnectionState
from unpoison.brokers.kafka.group_member import GroupMember
from unpoison.brokers.kafka.names import Names
from unpoison.brokers.kafka.partition import MUCH_RESTS, Assignment, Partition
from unpoison.brokers.kafka.reading import Reading, SourcePause
from unpoison.brokers.kafka.settings import ClientSettings
from unpoison.brokers.kafka.subscription import Receipt, Subscription
from unpoison.brokers.kafka.topology import UNKNOWN
from unpoison.brokers.kafka.url import address
from unpoison.brokers.kafka.waiting import Waiting
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Kept, Settlement

LARGE = reading.MAX_BYTES


class Client:
    """Knows which partitions it was told not to read, and what it is subscribed to."""

    def __init__(self):
        self.paused, self.topics = set(), []

    def pause(self, places):
        self.paused |= {place.partition for place in places}

    def resume(self, places):
        self.paused -= {place.partition for place in places}

    def list_topics(self, topic, timeout):
        pass

    def subscribe(self, topics, **callbacks):
        self.topics = topics

    def unsubscribe(self):
        self.topics = []


def owned(pause, topic="orders", partitions=1, records=0):
    """Partitions that were just taken over, and commits for them that nobody sends."""
    commits = Commits(Assignment(topic, lambda: None), pause)
    for number in range(partitions):
        part = commits.assignment.partitions[number] = Partition(topic, number)
        part.take_over(-1, None)
        if records:
            part.fresh.extend(part.arrive([Read(at) for at in range(records)]))
    return commits


def about_to_start(*members):
    parts = [each for member in members for each in member.assignment.partitions.values()]
    return sum(len(each.ready) + len(each.marking) for each in parts)


class Source:
    """A subscription whose two members send no commits by themselves."""

    def __init__(self, records=5):
        self.pause = SourcePause()
        self.main = owned(self.pause, partitions=3, records=records)
        self.retry = owned(self.pause, "orders.g.retry", partitions=2, records=records)
        self.known = Subscription.__new__(Subscription)
        self.known._pause, self.known._has_bell = self.pause, True
        self.known.main, self.known.retry = self._member(self.main), self._member(self.retry)

    def _member(self, commits):
        def begin(*, fetching):
            commits.marking |= fetching

        def rest():
            GroupMember.rest(SimpleNamespace(assignment=commits.assignment, commits=commits))

        commits.wait = lambda *, anyway: None
        commits.assignment.is_joined = True
        return SimpleNamespace(
            begin=begin, rest=rest, check=lambda: None, commits=commits, assignment=commits.assignment, topic="orders"
        )

    def ask(self, count):
        self.known._ask(count)

    def mark(self):
        for commits in (self.main, self.retry):
            for partition, position in commits._changes():
                partition.confirm(position)
                partition.free()


def test_a_pause_lets_nothing_start_that_was_read_and_a_probe_no_more_than_it_asks_for():
    source = Source()
    source.ask(100)
    source.mark()
    assert about_to_start(source.main, source.retry) == 25
    source.known.pause()
    source.mark()
    assert about_to_start(source.main, source.retry) == 0
    for _ in range(3):
        source.ask(1)
        source.mark()
        assert about_to_start(source.main, source.retry) == 1, "one was asked for, however often, and by both members"
    source.ask(4)
    source.mark()
    assert about_to_start(source.main, source.retry) == 4
    for each in source.known.members:
        each.rest()
    source.known.resume()
    source.mark()
    assert about_to_start(source.main, source.retry) == 25


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ask", "mark", "take", "rest", "arrive"]), st.integers(0, 3)), max_size=40))
def test_in_a_pause_no_more_is_about_to_start_than_was_asked_for_last(steps):
    source, asked = Source(records=2), 0
    source.known.pause()
    parts = [*source.main.assignment.partitions.values(), *source.retry.assignment.partitions.values()]
    for name, number in steps:
        part = parts[number]
        if name == "ask":
            asked = max(number, about_to_start(source.main, source.retry))
            source.ask(number)
        elif name == "mark":
            source.mark()
        elif name == "take":
            part.take(number)
        elif name == "rest":
            source.known.main.rest()
        else:
            part.fresh.extend(part.arrive([Read(part.next)]))
        assert about_to_start(source.main, source.retry) <= asked


def test_who_waits_for_a_probe_waits_until_it_may_start_though_another_message_runs():
    source = Source()
    part, here = source.main.assignment.partitions[0], source.known.main
    here.waiting = Waiting()
    part.mark()
    part.free()
    part.take(1)
    source.known.pause()
    assert source.known._is_read_to(here, part, 5), "nothing is asked for"
    source.ask(1)
    assert not source.known._is_read_to(here, part, 5), "it is not marked yet"
    source.main._changes()
    assert not source.known._is_read_to(here, part, 5), "that is not confirmed"
    part.free()
    assert source.known._is_read_to(here, part, 5)


def test_partitions_are_read_for_a_probe_only_if_nothing_waits_that_was_read_before():
    pause = SourcePause()
    assert not pause.stops_reading
    pause.begin()
    assert pause.stops_reading
    pause.ask(1, is_held=True)
    assert pause.stops_reading
    pause.ask(1, is_held=False)
    assert not pause.stops_reading
    assert pause.grant(5) == 1
    assert pause.stops_reading
    pause.end()
    assert (pause.stops_reading, pause.grant(5)) == (False, 5)


REASONS = st.tuples(st.sampled_from(["source", "rests", "size", "new"]), st.integers(0, 2), st.booleans())


@settings(max_examples=200, deadline=None)
@given(st.lists(REASONS, max_size=30))
def test_the_client_reads_a_partition_exactly_if_there_is_no_reason_against_it(steps):
    client, pause, assignment = Client(), SourcePause(), Assignment("orders", lambda: None)
    read = Reading(assignment, pause, lambda: cast("Any", client), lambda partition: partition.number == 2)
    for number in range(3):
        assignment.partitions[number] = Partition("orders", number)
    for name, number, is_on in steps:
        if name == "source":
            (pause.begin if is_on else pause.end)()
        elif name == "rests":
            read.stop(assignment.partitions[number], MUCH_RESTS, is_on)
        elif name == "size":
            assignment.partitions[number].size = 3 * LARGE if is_on else 0
        else:  # it went to another consumer, and came back: then the client is told to read it
            assignment.partitions[number] = Partition("orders", number)
            client.paused.discard(number)
        read.choose()
        parts = assignment.partitions.values()
        assert client.paused == {each.number for each in parts if each.pauses}
        full = sum(each.size for each in parts) > 2 * LARGE
        for each in parts:
            if full or (pause.is_on and each.number != 2):
                assert each.number in client.paused


def test_a_paused_source_keeps_no_thread_busy_however_much_of_it_was_read():
    source = Source(records=3_000)
    read = Reading(source.main.assignment, source.pause, lambda: None, lambda _: False)
    assert (read.is_full(), read.is_busy()) == (True, True)
    source.known.pause()
    assert (read.is_full(), read.is_busy()) == (False, False)
    source.ask(1)
    assert read.is_busy()
    source.mark()
    source.main.assignment.partitions[0].take(1)
    assert read.is_busy()


def member():
    where = address("kafka://127.0.0.1:1?session_timeout=4&give_back=5")
    settings = ClientSettings(where, "me", ConnectionState(where)).member("g", "orders")
    commits = owned(SourcePause(), records=3)
    commits.assignment.topic_id = UNKNOWN
    return GroupMember(None, None, settings, commits, Waiting(), watch=None)


def test_a_paused_member_gives_nothing_up_and_one_whose_pause_is_over_has_time_to_fetch(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("unpoison.brokers.kafka.group_member.time.monotonic", lambda: now[0])
    here, client = member(), Client()
    here._keeper = object()
    here.begin(fetching=True)
    here._pause.begin()
    for _ in range(3):
        now[0] += 1_000.0
        here._subscribe(client)
        assert client.topics == ["orders"]
    here._pause.end()
    here.begin(fetching=True)
    here._subscribe(client)
    assert client.topics == ["orders"]
    now[0] += 6.0
    here._subscribe(client)
    assert client.topics == [], "messages wait here, and nobody fetches them"


def test_a_pause_does_not_call_partitions_back_that_were_left_to_others(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("unpoison.brokers.kafka.group_member.time.monotonic", lambda: now[0])
    here, client = member(), Client()
    here._keeper = object()
    here.begin(fetching=True)
    here._subscribe(client)
    now[0] += 6.0
    here._subscribe(client)
    here._pause.begin()
    here._subscribe(client)
    assert client.topics == []
    here.begin(fetching=True)
    here._subscribe(client)
    assert client.topics == ["orders"], "a probe is wanted"


def test_nobody_who_asked_long_ago_has_a_message_about_to_start(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("unpoison.brokers.kafka.group_member.time.monotonic", lambda: now[0])
    here = member()
    here._keeper = object()
    here._pause.begin()
    here.begin(fetching=True)
    here._pause.ask(1, is_held=True)
    here.commits._changes()
    now[0] += group_member.ASKED_FOR - 0.1
    here._forget_asked()
    assert about_to_start(here.commits) == 1
    here.is_waited_for = True
    now[0] += 0.2
    here._forget_asked()
    assert about_to_start(here.commits) == 1, "a thread waits for it"
    here.is_waited_for = False
    here._forget_asked()
    assert about_to_start(here.commits) == 0
    assert (here._pause.left, here.commits.marking) == (0, False)


def test_a_source_that_is_paused_before_it_is_known_begins_in_the_pause(monkeypatch):
    paused = []
    broker = KafkaBroker("kafka://127.0.0.1:1?group=g")
    monkeypatch.setattr(broker.topology, "ensure", lambda source, *, to_consume: None)
    monkeypatch.setattr(
        broker_module,
        "Subscription",
        lambda source, *_, has_bell: SimpleNamespace(pause=lambda: paused.append(source), resume=lambda: paused.remove(source)),
    )
    broker._paused.add("orders")
    broker._subscription("orders")
    assert paused == ["orders"]
    broker.resume("orders")
    assert paused == []
    broker.resume("others")
    assert broker._paused == set()


@pytest.mark.parametrize("after", [0, 1.0])
def test_what_is_handed_back_is_looked_at_a_few_times_and_not_compared_with_all_others(monkeypatch, after):
    looked, stored = [], []
    stays = broker_module._stays_as_it_was
    monkeypatch.setattr(broker_module, "_stays_as_it_was", lambda item: looked.append(1) or stays(item))
    monkeypatch.setattr(Kept, "__eq__", lambda *_: pytest.fail("compared with another one"))
    source = Source(records=500)
    part = source.main.assignment.partitions[0]
    part.mark()
    part.free()
    deliveries = [Delivery(Receipt(part, each.offset(), each), "orders", "id", b"") for each in part.take(500)]
    source.known.names, source.known.watch = Names("orders", "g"), SimpleNamespace(missing=frozenset(), replaced=())
    broker = KafkaBroker("kafka://127.0.0.1:1?group=g")
    broker._subscriptions["orders"] = source.known
    broker._store = stored.extend
    broker.settle(Settlement(kept=[Kept(each, Counters(), after) for each in deliveries]))
    assert len(looked) <= 2 * 500
    assert (len(stored), len(part.fresh), len(part.running)) == ((500, 0, 0) if after else (0, 500, 0))


def test_who_may_not_see_how_long_messages_are_kept_is_told_which_right_that_needs():
    broker, refused = KafkaBroker("kafka://127.0.0.1:1?group=g&prefix=p."), Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    broker.connection.queries._admin = SimpleNamespace(describe_configs=lambda asked, **_: dict.fromkeys(asked, refused))
    with pytest.raises(BrokerUnavailable, match=r"how long topic 'p\.orders' keeps .*needs DescribeConfigs on topic 'p\.orders'"):
        broker.deletes_after("orders")
