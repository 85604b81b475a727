"""A server that is slow: what was lost meanwhile stays lost, and nobody looks for ever."""

import threading

import pytest

from tests.contract.sqs_lab import SQSLab
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.port.broker import Dead, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until


@pytest.fixture
def lab(tmp_path, elasticmq):
    with SQSLab(elasticmq, tmp_path, visibility=1, with_proxy=True) as lab:
        yield lab


def test_a_renewal_that_is_confirmed_too_late_renews_nothing(lab):
    broker, go_on = lab.broker("orders"), threading.Event()
    broker.publish(given.messages("orders", 1))
    lab.proxy.denies = lambda operation, queue: operation == "ChangeMessageVisibilityBatch" and not go_on.wait(30)
    (delivery,) = broker.fetch("orders", 10)
    receipt, leases = delivery.receipt, delivery.receipt.holder.leases
    wait_until(lambda: lab.proxy.asked("ChangeMessageVisibilityBatch", "orders"), lambda: "Nobody renews")
    wait_until(lambda: not leases.held([receipt]), lambda: "It still believes to hold it")
    ended = leases.until[receipt.handle]
    go_on.set()
    wait_until(lambda: leases.until[receipt.handle] != ended, lambda: "The answer did not come")
    with pytest.raises(OwnershipLost):
        broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery))]))
    assert not lab.dlq("orders").count()


@pytest.mark.long
def test_a_look_that_takes_longer_than_letters_can_be_kept_from_others_ends_and_the_next_one_sees_them_all(lab):
    given.dead_letters(lab, "orders", [b"1", b"2", b"3"])
    is_over = threading.Event()

    def slowly(operation: str, queue: str) -> bool:
        if operation == "ReceiveMessage" and queue.endswith("-dlq"):
            is_over.wait(1.1)  # by then a letter that was taken can be received again
        return False

    lab.proxy.denies = slowly
    with pytest.raises(BrokerUnavailable, match="took longer than its letters can be kept from others"):
        lab.dlq("orders").peek()
    is_over.set()
    assert {letter.body for letter in lab.dlq("orders").peek()} == {b"1", b"2", b"3"}
