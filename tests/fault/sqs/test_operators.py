"""A DLQ whose server says yes to some of what an operator wants: what is said to be done is done, and the rest is still there."""

import pytest

from tests.contract.sqs_lab import SQSLab
from unpoison.errors import BrokerUnavailable
from unpoison.testing import given

SEND, DELETE = "SendMessageBatch", "DeleteMessageBatch"


@pytest.fixture
def lab(tmp_path, elasticmq):
    with SQSLab(elasticmq, tmp_path, with_proxy=True) as lab:
        given.dead_letters(lab, "orders", [str(n).encode() for n in range(15)])
        yield lab


def refusing(lab, operation, queue, times=1):
    """The first entry of a request to this queue is refused, so often."""
    left = [times]

    def fails(name, asked, entry):
        if name != operation or not asked["QueueUrl"].endswith(queue) or entry is not asked["Entries"][0] or not left[0]:
            return None
        left[0] -= 1
        return "InternalError"

    lab.proxy.fails = fails


def test_a_letter_that_was_sent_again_and_not_deleted_is_taken_from_the_dlq_at_once(lab):
    refusing(lab, DELETE, "-dlq")
    assert lab.dlq("orders").replay_all().count == 15
    assert lab.dlq("orders").count() == 0


@pytest.mark.long
def test_a_letter_that_somebody_left_there_when_it_was_sent_again_is_taken_from_the_dlq_by_whoever_looks(lab):
    refusing(lab, DELETE, "-dlq", times=4)
    assert lab.dlq("orders").replay_all().count == 15
    assert lab.dlq("orders").count() > 0
    lab.proxy.fails = lambda *_: None
    assert list(lab.dlq("orders").letters()) == []
    assert lab.dlq("orders").count() == 0


@pytest.mark.long
def test_a_letter_that_could_not_be_sent_again_is_still_there_and_the_others_are_sent(lab):
    refusing(lab, SEND, "-replays")
    with pytest.raises(BrokerUnavailable, match=r"Taken from .*: 14 letters. Still there: 1, .*InternalError"):
        lab.dlq("orders").replay_all()
    assert lab.dlq("orders").count() == len(list(lab.dlq("orders").letters())) == 1
    assert lab.dlq("orders").replay_all().count == 1
    assert lab.broker("orders").depth("orders").ready == 15


def test_a_purge_of_which_a_part_was_refused_says_so_and_ends_the_next_time(lab):
    refusing(lab, DELETE, "-dlq")
    with pytest.raises(BrokerUnavailable, match=r"did not delete 1 of the messages in .*still there"):
        lab.dlq("orders").purge()
    assert lab.dlq("orders").count() == 1
    lab.dlq("orders").purge()
    assert lab.dlq("orders").count() == 0
