"""Partitions that went to another consumer, some of them while messages of theirs run here."""

from types import SimpleNamespace

import pytest

from tests.unit.kafka_records import Read
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.names import HELD, Names
from unpoison.brokers.kafka.partition import Assignment, Partition
from unpoison.brokers.kafka.subscription import Receipt, Subscription
from unpoison.brokers.kafka.waiting import hand_over
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import Delivery
from unpoison.port.broker import Settlement

NAMES = Names("orders", "billing")
REF = "orders/0/7#me"


def member(topic):
    assignment = Assignment(topic, lambda: None)
    return SimpleNamespace(topic=topic, assignment=assignment, commits=SimpleNamespace(wait=lambda anyway: None))


class Kafka:
    """A broker and its subscription, without a server."""

    def __init__(self):
        self.broker = KafkaBroker("kafka://127.0.0.1:1?group=billing")
        known = self.subscription = Subscription.__new__(Subscription)
        known.source, known.names, known._cut_off = "orders", NAMES, set()
        known.main, known.retry = member("orders"), member(NAMES.retry)
        known.watch = SimpleNamespace(missing=frozenset(), replaced=set())
        known.fetch = lambda limit: []
        self.broker._subscriptions["orders"] = known
        self.stored, self.is_away = [], False
        self.broker.connection.store = self.broker.connection.must_store = self.store

    def store(self, records, *_):
        if self.is_away:
            raise BrokerUnavailable("away")
        self.stored += records
        return {}

    def has_handed_over(self):
        """A message that runs here, whose partition another consumer has by now."""
        partition, record = Partition("orders", 0), Read(7)
        partition.is_lost, partition.handed_over[7] = True, (REF, record)
        self.subscription.main.assignment.handed_over.add(partition)
        return Delivery(Receipt(partition, 7, record), "orders", "id", b"body")


@pytest.fixture
def here():
    return Kafka()


def owned(here):
    """A partition of ours, with a message that runs, one that is ready, and one that runs alone."""
    ours = here.subscription.retry.assignment.partitions[1] = Partition(NAMES.retry, 1)
    ours.take_over(0, "unpoison/1 ")
    first, second, third = ours.arrive([Read(0), Read(1), Read(2)])
    ours.fresh.extend([first, second])
    ours.mark()
    ours.free()
    ours.take(1)
    ours.rest(third)
    ours.start_alone(2, "a start")
    return ours


def test_what_runs_in_partitions_that_are_still_ours_starts_again_after_others_were_lost(here):
    ours = owned(here)
    here.subscription.main.assignment.lost_something = True
    with pytest.raises(OwnershipLost):
        here.broker.fetch("orders", 10)
    assert ours.running == {}
    assert ([record.at for record in ours.fresh], ours.losses) == ([0], {0: 1})
    assert (list(ours.resting), ours.starts) == ([2], {2: ["a start"]})
    assert ours.first_unfinished == 0


def test_what_was_handed_over_and_is_cut_off_goes_to_the_group_as_a_copy(here):
    delivery = here.has_handed_over()
    here.subscription.main.assignment.lost_something = True
    with pytest.raises(OwnershipLost):
        here.broker.fetch("orders", 10)
    here.is_away = True
    with pytest.raises(BrokerUnavailable):
        here.broker.fetch("orders", 10)
    here.is_away = False
    here.broker.fetch("orders", 10)
    copy, note = here.stored
    assert (copy.topic, copy.partition != HELD) == (NAMES.retry, True)
    assert b'"vanished":1' in dict(copy.headers)["x-unpoison-counters"]
    assert note.partition == HELD
    assert delivery.receipt.partition.handed_over == {}
    assert here.subscription.main.assignment.handed_over == set()
    here.broker.fetch("orders", 10)
    assert len(here.stored) == 2


def test_the_group_is_told_of_a_settled_message_though_it_could_not_be_told_at_first(here):
    ours = owned(here)
    done = Settlement(gone=[Delivery(Receipt(ours, 0, Read(0)), "orders", "other", b"body"), here.has_handed_over()])
    here.is_away = True
    with pytest.raises(BrokerUnavailable):
        here.broker.settle(done)
    here.is_away = False
    here.broker.settle(done)
    assert len(here.stored) == 1
    assert here.stored[0].partition == HELD


def test_a_copy_that_may_be_stored_late_is_cancelled_if_its_message_was_settled_meanwhile():
    assignment, partition, sent = Assignment("orders", lambda: None), Partition("orders", 0), []
    partition.running[7] = Read(7)

    def store(records):
        sent.append(list(records))
        partition.running.clear()  # settled while the copy was on its way
        return {0: "not confirmed in time"} if len(sent) == 1 else {}

    hand_over(SimpleNamespace(name="me", store=store), NAMES, assignment, partition)
    held, note = sent
    assert (len(held), len(note)) == (1, 1)
    assert partition.handed_over == {}


def test_a_suspect_that_is_put_back_does_not_count_as_started():
    partition = Partition("orders", 0)
    partition.take_over(0, "unpoison/1 ")
    partition.arrive([Read(0)])
    partition.rest(Read(0))
    partition.start_alone(0, "a start")
    partition.put_back(0)
    assert (partition.starts, list(partition.resting)) == ({}, [0])
