"""Nothing is skipped that was read before it is known where the last owner of a partition had ended."""

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.unit.kafka_records import Read
from unpoison.brokers.kafka.commit_metadata import decode
from unpoison.brokers.kafka.committing import Commits
from unpoison.brokers.kafka.errors import ConnectionState
from unpoison.brokers.kafka.group_member import GroupMember
from unpoison.brokers.kafka.partition import Assignment, Partition
from unpoison.brokers.kafka.settings import ClientSettings
from unpoison.brokers.kafka.topology import UNKNOWN
from unpoison.brokers.kafka.url import address
from unpoison.brokers.kafka.waiting import Waiting
from unpoison.errors import BrokerUnavailable


class Client:
    """Does not know at first what was committed, as one whose server is just electing a leader."""

    def __init__(self, committed):
        self.answers = [KafkaException(KafkaError(KafkaError._TIMED_OUT)), committed]

    def committed(self, places, timeout):
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaException):
            raise answer
        return [TopicPartition("orders", 0, *answer)]


def member():
    where = address("kafka://127.0.0.1:1?session_timeout=4&give_back=5")
    settings = ClientSettings(where, "me", ConnectionState(where)).member("g", "orders")
    assignment = Assignment("orders", lambda: None)
    assignment.partitions[0], assignment.topic_id = Partition("orders", 0), UNKNOWN
    return GroupMember(None, None, settings, Commits(assignment), Waiting(), watch=None)


def read_early(*committed):
    """Everything up to the end of the partition is read before the server tells what was committed."""
    here, client = member(), Client(committed)
    here.commits.take_over(client, here.waiting.arrive)
    here._arrive([Read(0), Read(1), Read(2), Read(3), Read(4, is_end=True)])
    here.commits.take_over(client, here.waiting.arrive)
    return here.assignment.partitions[0]


def test_what_was_read_early_is_still_to_do():
    part = read_early(-1001)
    assert [record.at for record in part.fresh] == [0, 1, 2, 3]
    assert part.first_unfinished == 0


def test_of_what_was_read_early_only_that_is_to_do_which_the_last_owner_left():
    part = read_early(1, "unpoison/1 A.")
    assert [record.at for record in part.fresh] == [1, 3]
    assert (part.first_unfinished, part.losses) == (1, {1: 1})


def test_a_partition_that_was_read_to_its_end_is_done_up_to_there():
    here, client = member(), Client((2, ""))
    here._arrive([Read(4, is_end=True)])
    here.commits.take_over(client, here.waiting.arrive)
    here.commits.take_over(client, here.waiting.arrive)
    assert here.assignment.partitions[0].first_unfinished == 4


class Server:
    """Keeps what is committed, and answers later."""

    def commit(self, *, offsets, asynchronous):
        (place,) = offsets
        self.started = decode(place.offset, place.metadata).started


def test_what_was_only_about_to_start_is_not_left_as_started_to_the_next_owner_by_a_commit_on_its_way():
    here, server = member(), Server()
    part = here.assignment.partitions[0]
    part.take_over(0, "unpoison/1 ")
    part.fresh.extend(part.arrive([Read(0), Read(1)]))
    here.commits.marking = True
    here.commits.send(server)
    assert server.started == {0, 1}
    here._on_revoke(server, [TopicPartition("orders", 0)])
    assert server.started == set()


def test_a_keeper_that_breaks_does_not_let_everybody_wait():
    here = member()
    here._keep_on = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        here._keep()
    with pytest.raises(BrokerUnavailable, match="ZeroDivisionError"):
        here.commits.check()
