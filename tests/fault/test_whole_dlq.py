"""Somebody looks through a whole DLQ, and in the middle of it the server goes silent, or the one who looks is killed."""

import os
import signal
import threading

import pytest

from tests.bulk_letters import fill
from tests.contract.rabbitmq_lab import RabbitMQLab
from tests.contract.sqs_lab import SHORT_VISIBILITY, SQSLab
from tests.contract.sqs_proxy import refusal
from tests.fault.rabbitmq.amqp_proxy import AMQPProxy
from unpoison.brokers import dead_letters_for
from unpoison.brokers.rabbitmq import connection, queue_pass
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.brokers.rabbitmq.deadletters import RabbitMQDeadLetters
from unpoison.brokers.sqs import connection as sqs_connection
from unpoison.deadletters import DLQManager
from unpoison.errors import BrokerUnavailable
from unpoison.port.broker import one_look
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import Child, Gate


@pytest.fixture
def lab(tmp_path, rabbitmq):
    with RabbitMQLab(rabbitmq, tmp_path) as lab:
        yield lab


def when_taken(monkeypatch, number, do):
    """Have this done when so many messages were taken."""
    arrived = queue_pass.QueuePass.arrived

    def counted(self, message):
        arrived(self, message)
        if self.taken == number:
            do()

    monkeypatch.setattr(queue_pass.QueuePass, "arrived", counted)


def ready(lab):
    broker = RabbitMQBroker(lab.url)
    broker.open([])
    try:
        return queue_pass.waiting_in(broker.connections.topology().connection, "orders.dlq")
    finally:
        broker.close()


def test_a_rabbitmq_that_goes_silent_in_the_middle_of_a_pass_is_not_waited_for_for_ever(lab, monkeypatch):
    fill(lab.url, "orders", 1_000, size=20_000)
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(queue_pass, "QUIET", 0.2)
    with AMQPProxy(lab.url) as proxy:
        letters = dead_letters_for(proxy.url, "orders", create=False)
        when_taken(monkeypatch, 10, proxy.freeze)
        with pytest.raises(BrokerUnavailable, match=r"handed out [0-9,]+ of 1,000 messages of 'orders.dlq' and no more.*go back"):
            letters.freeze()
        proxy.thaw()
        letters.broker.close()
    wait_until(lambda: ready(lab) == 1_000, lambda: "They are not back")


def test_a_consumer_of_the_dlq_that_holds_letters_does_not_stop_a_look(lab, monkeypatch):
    """It got them between the count and the pass."""
    fill(lab.url, "orders", 20)
    monkeypatch.setattr(queue_pass, "QUIET", 0.2)
    other = RabbitMQBroker(lab.url)
    other.open([])
    beside = queue_pass.QueuePass(other.connections.topology().connection, "orders.dlq", lambda message: None)
    consume = queue_pass.QueuePass._consume

    def later(self, credit):
        if self is not beside and not beside.taken:
            beside._take(5, None)
        return consume(self, credit)

    monkeypatch.setattr(queue_pass.QueuePass, "_consume", later)
    assert len(list(lab.dlq("orders").letters())) == 15
    other.close()


def test_an_operator_killed_in_the_middle_of_a_pass_leaves_all_letters_in_their_order(lab, monkeypatch):
    fill(lab.url, "orders", 3_000, size=100)

    def look():
        when_taken(monkeypatch, 2_500, lambda: os.kill(os.getpid(), signal.SIGKILL))
        list(lab.dlq("orders").letters())

    assert Child(look).wait() == -signal.SIGKILL
    wait_until(lambda: ready(lab) == 3_000, lambda: "They are not back")
    found = [letter.message.id for letter in lab.dlq("orders").letters()]
    assert found == [f"message-{number}" for number in range(3_000)]


def test_a_collector_killed_before_it_removes_letters_leaves_all_of_them_in_their_order(lab):
    fill(lab.url, "orders", 1_000, size=100)

    def collect():
        letters = lab.letters("orders")
        with one_look(letters):
            for _ in range(3):
                letters.remove([each.letter.id for each in letters.whole(limit=100)])
            assert len(letters.whole(limit=100)) == 100
            os.kill(os.getpid(), signal.SIGKILL)

    assert Child(collect).wait() == -signal.SIGKILL
    wait_until(lambda: ready(lab) == 700, lambda: "They are not back")
    assert [each.letter.message.id for each in lab.letters("orders").whole(limit=1_000)] == [
        f"message-{number}" for number in range(300, 1_000)
    ]


def test_a_collector_of_sqs_that_is_killed_leaves_what_it_had_not_removed(tmp_path, elasticmq):
    with SQSLab(elasticmq, tmp_path, visibility=SHORT_VISIBILITY) as lab:
        fill(lab.url, "orders", 100, size=100)
        removed = Gate("removed")

        def collect():
            letters = lab.letters("orders")
            with one_look(letters):
                letters.remove([each.letter.id for each in letters.whole(limit=30)])
                letters.whole(limit=30)
                removed.open()
                os.kill(os.getpid(), signal.SIGKILL)

        assert Child(collect).wait() == -signal.SIGKILL
        assert removed.is_open()
        found = []
        wait_until(
            lambda: found.append(lab.letters("orders").whole(limit=200)) or len(found[-1]) >= 70, lambda: "They are not back"
        )
        ids = sorted(int(each.letter.message.id.removeprefix("message-")) for each in found[-1])
        assert (len(ids), len(set(ids))) == (70, 70)


def test_a_busy_queue_that_says_that_it_is_empty_is_not_believed(lab, monkeypatch):
    fill(lab.url, "orders", 20)
    counted, told = connection.Channel.ready, []

    def busy(channel, queue):
        told.append(queue)
        return 0 if told.count(queue) == 1 else counted(channel, queue)

    monkeypatch.setattr(connection.Channel, "ready", busy)
    assert lab.dlq("orders").count() == 20
    told.clear()
    assert len(list(lab.dlq("orders").letters())) == 20


@pytest.mark.long
def test_an_sqs_that_goes_silent_in_the_middle_of_a_pass_is_not_waited_for_for_ever(tmp_path, elasticmq, monkeypatch):
    with SQSLab(elasticmq, tmp_path, with_proxy=True) as lab:
        fill(lab.url, "orders", 1_000, size=100)
        monkeypatch.setattr(sqs_connection, "ANSWER_TIMEOUT", 1)
        monkeypatch.setattr(sqs_connection, "_clients", {})
        thawed, asked = threading.Event(), []

        def silent(operation, request):
            asked.append(operation)
            if asked.count("ReceiveMessage") <= 30:
                return None
            thawed.wait()
            return 503, refusal("ServiceUnavailable")

        manager = DLQManager(dead_letters_for(lab.url, "orders"), "orders")
        lab.proxy.says = silent
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            list(manager.letters())
        thawed.set()
        manager.close()
        # Three tries for each request under way, then one for those that put letters back, and not one for each ten letters.
        assert asked.count("ChangeMessageVisibilityBatch") <= 3 * 16


def test_more_letters_than_the_credit_of_one_consumer_keep_their_order(lab, monkeypatch):
    monkeypatch.setattr(queue_pass, "CREDIT", 100)
    fill(lab.url, "orders", 1_500, size=100)
    for _ in range(2):
        found = [letter.message.id for letter in lab.dlq("orders").letters()]
        assert found == [f"message-{number}" for number in range(1_500)]


def test_a_dlq_that_a_consumer_timeout_took_back_is_not_taken_for_done(lab):
    """As RabbitMQ 4.3 does it: the consumer is cancelled, and a late acknowledgement does nothing."""
    fill(lab.url, "orders", 10)
    broker = RabbitMQBroker(lab.url)
    broker.open(["orders"])
    letters = RabbitMQDeadLetters(broker, "orders")
    with letters.one_look():
        ids = letters.ids(limit=10)
        letters._look.reading._passes["orders.dlq"]._void()
        with pytest.raises(BrokerUnavailable, match=r"took back the messages of 'orders.dlq'"):
            letters.remove(ids)
    broker.close()
    wait_until(lambda: ready(lab) == 10, lambda: "They are not back")
