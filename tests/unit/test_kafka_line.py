"""Nothing is skipped that was read before it is known where the last owner of a partition had ended."""

from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka.errors import Connecting
from unpoison.brokers.kafka.group_member import Line
from unpoison.brokers.kafka.partition import Part
from unpoison.brokers.kafka.url import address
from unpoison.errors import BrokerUnavailable


@dataclass
class Read:
    """A record as the client gives it, or the end of a partition."""

    at: int
    is_end: bool = False

    def topic(self):
        return "orders"

    def partition(self):
        return 0

    def offset(self):
        return self.at

    def error(self):
        return KafkaError(KafkaError._PARTITION_EOF) if self.is_end else None

    def __len__(self):
        return 1


class Client:
    """Does not know at first what was committed, as one whose server is just electing a leader."""

    def __init__(self, committed):
        self.answers = [KafkaException(KafkaError(KafkaError._TIMED_OUT)), committed]

    def committed(self, places, timeout):
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaException):
            raise answer
        return [TopicPartition("orders", 0, *answer)]


class Straight:
    def arrange(self, part, records):
        part.fresh.extend(records)


def line():
    where = Connecting(address("kafka://127.0.0.1:1"))
    settings = {"group.id": "g", "session.timeout.ms": 4000, "give_back": 5.0, "drain": 1.0, "connecting": where}
    made = Line(settings, "orders", None, lambda: None)
    made.shelf = Straight()
    made.parts[0] = Part("orders", 0)
    return made


def read_early(*committed):
    """Everything up to the end of the partition is read before the server tells what was committed."""
    here, client = line(), Client(committed)
    here.read_ledgers(client)
    here._arrive([Read(0), Read(1), Read(2), Read(3), Read(4, is_end=True)])
    here.read_ledgers(client)
    return here.parts[0]


def test_what_was_read_early_is_still_to_do():
    part = read_early(-1001)
    assert [record.at for record in part.fresh] == [0, 1, 2, 3]
    assert part.lowest == 0


def test_of_what_was_read_early_only_that_is_to_do_which_the_last_owner_left():
    part = read_early(1, "unpoison/1 A.")
    assert [record.at for record in part.fresh] == [1, 3]
    assert (part.lowest, part.levels) == (1, {1: 1})


def test_a_partition_that_was_read_to_its_end_is_done_up_to_there():
    here, client = line(), Client((2, ""))
    here._arrive([Read(4, is_end=True)])
    here.read_ledgers(client)
    here.read_ledgers(client)
    assert here.parts[0].lowest == 4


def test_a_keeper_that_breaks_does_not_let_everybody_wait():
    here = line()
    with pytest.raises(ZeroDivisionError):
        here.commits.watched(lambda: 1 / 0)()
    with pytest.raises(BrokerUnavailable, match="ZeroDivisionError"):
        here.commits.check()
