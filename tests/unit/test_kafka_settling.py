"""What is remembered about one partition says nothing about another, and a commit is looked at before anybody can change it."""

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.unit.kafka_records import Read
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.committing import CONFIRMED_WITHIN, Commits
from unpoison.brokers.kafka.names import Names
from unpoison.brokers.kafka.partition import Assignment, Partition
from unpoison.brokers.kafka.subscription import Receipt
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Kept


class Subscription:
    names = Names("orders", "unpoison")


def kept(part):
    read = part.running[0] = Read()
    return Kept(Delivery(Receipt(part, 0, read), "orders", "id", b"body"), Counters(attempts=1))


def test_a_copy_is_stored_though_a_partition_that_is_gone_was_at_the_same_place_in_memory():
    broker, stored = KafkaBroker("kafka://127.0.0.1:1"), []
    broker.connection.store = lambda copies, places: stored.extend(copies) or {}
    broker._subscriptions["orders"] = Subscription()
    for number in range(100):  # a partition that nobody has any more leaves its place to the next one
        part = Partition("orders", 0)
        broker._store([kept(part)])  # and then the partition is lost, before that was settled
        assert len(stored) == number + 1
        part.is_lost = True
        del part


class Interrupted(threading.Condition):
    """A lock after which somebody else always gets its turn at once."""

    depth = 0

    def __init__(self, meanwhile):
        super().__init__(threading.RLock())
        self.meanwhile = meanwhile

    def __enter__(self):
        self.depth += 1
        return super().__enter__()

    def __exit__(self, *raised):
        self.depth -= 1
        super().__exit__(*raised)
        if self.depth == 0:
            self.meanwhile()


class NobodyComes(threading.Condition):
    """A lock on which nothing changes while somebody waits."""

    def wait_for(self, predicate, timeout=None):
        return predicate() or pytest.fail("It waits for a commit that nobody sends")


def revoked(changed=None):
    """A partition that goes to another consumer: the keeper is in Kafka's call about that, and sends no commit before its end."""
    assignment = Assignment("orders", lambda: None, changed)
    part = assignment.partitions[0] = Partition("orders", 0)
    part.take_over(0, "unpoison/1 ")
    part.arrive([Read()])
    part.finish(0)
    part.is_revoked = True
    return assignment


@pytest.mark.parametrize("is_under_way", [False, True])
def test_settling_does_not_wait_for_a_commit_while_partitions_are_revoked(is_under_way):
    commits = Commits(revoked(NobodyComes()))
    commits.is_under_way = is_under_way  # its answer would be heard by the keeper
    commits.wait(anyway=True)


def test_a_start_on_record_is_waited_for_while_partitions_are_revoked(monkeypatch):
    monkeypatch.setattr("unpoison.brokers.kafka.committing.ANSWER_WITHIN", 0.01)
    with pytest.raises(Exception, match="has not confirmed a commit to 'orders'"):
        Commits(revoked()).require()


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_start_that_the_server_has_confirmed_is_not_taken_for_unconfirmed(monkeypatch, is_confirmed):
    monkeypatch.setattr("unpoison.brokers.kafka.committing.ANSWER_WITHIN", 0.01)
    part = Partition("orders", 0)
    part.take_over(0, "unpoison/1 A")
    part.arrive([Read()])
    part.running[0] = Read()
    part.confirmed = part.position() if is_confirmed else None

    def the_keeper_reads_and_marks_more():
        part.fresh.append(Read(part.next))
        part.next += 1
        part.mark()

    assignment = Assignment("orders", lambda: None, Interrupted(the_keeper_reads_and_marks_more))
    assignment.partitions[0] = part
    commits = Commits(assignment)
    if is_confirmed:
        commits.require()
    else:
        with pytest.raises(Exception, match="has not confirmed a commit to 'orders'"):
            commits.require()


class Refusing:
    """A client that the group no longer knows."""

    def commit(self, offsets, asynchronous):
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))


def test_a_refused_commit_of_partitions_that_are_lost_keeps_nobody_from_fetching(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("unpoison.brokers.kafka.committing.time.monotonic", lambda: now[0])
    assignment = revoked()
    assignment.partitions[0].is_revoked = False
    commits = Commits(assignment)
    now[0] = 1.0
    commits.send(Refusing())
    now[0] += 2 * CONFIRMED_WITHIN
    with pytest.raises(BrokerUnavailable, match="has confirmed no commit"):
        commits.check()
    assignment.partitions.clear()
    commits.send(Refusing())
    commits.check()
