"""A server that does not answer is never taken for one that has nothing."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from unpoison.brokers.kafka import cluster_queries, errors
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.url import address
from unpoison.errors import BrokerUnavailable

NO_ANSWER = -1001
"""What the client says about the end of a partition whose leader did not answer, without any error."""
PLACE = ("orders", 0)


class Admin:
    """A client that knows a leader which is no more, or the one that leads now. `refusals` come before it answers."""

    def __init__(self, offset, refusals=()):
        self.offset, self.refusals = offset, list(refusals)

    def list_offsets(self, asked, **options):
        answer = Future()
        if self.refusals:
            answer.set_exception(KafkaException(KafkaError(self.refusals.pop(0))))
        else:
            answer.set_result(SimpleNamespace(offset=self.offset))
        return dict.fromkeys(asked, answer)


@pytest.fixture
def connection(monkeypatch):
    monkeypatch.setattr(cluster_queries, "ADMIN_LASTS", 0.0)
    monkeypatch.setattr(cluster_queries, "AGREED_WITHIN", 0.2)
    return Connection(address("kafka://127.0.0.1:1"))


def clients(connection, *offsets):
    made = [Admin(offset) for offset in offsets]
    connection.state.admin = lambda settings: made.pop(0) if len(made) > 1 else made[0]


def test_another_client_is_asked_where_a_partition_ends_if_the_leader_does_not_answer(connection):
    clients(connection, NO_ANSWER, 7)
    assert connection.queries.ends([PLACE]) == {PLACE: 7}


def test_a_new_leader_that_does_not_know_yet_where_a_partition_ends_is_asked_again(connection):
    admin = Admin(7, refusals=[KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.LEADER_NOT_AVAILABLE])
    connection.state.admin = lambda settings: admin
    assert connection.queries.ends([PLACE]) == {PLACE: 7}


def test_a_partition_whose_leader_never_answers_ends_nowhere(connection):
    clients(connection, NO_ANSWER)
    with pytest.raises(BrokerUnavailable, match="asking where partitions end"):
        connection.queries.ends([PLACE])


def test_no_answer_in_time_is_an_error_of_kafkas():
    with pytest.raises(KafkaException) as raised:
        errors.result_within(Future(), 0.001)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT


def partition(leader, isrs):
    return SimpleNamespace(id=0, leader=leader, isrs=isrs, replicas=[1, 2, 3])


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (partition(3, [3]), "; partition 0 of 'orders' has 1 of its 3 copies in sync"),
        (partition(-1, [3]), "; no server leads partition 0 of 'orders', which is on servers 1, 2, 3"),
        (partition(3, [1, 2, 3]), ""),
    ],
)
def test_what_was_not_confirmed_says_what_was_in_the_way(found, why):
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    told = errors.explain_timeout(error, "orders", SimpleNamespace(partitions={0: found})).str()
    assert told.startswith(error.str())
    assert why in told
    assert why or told == error.str()
