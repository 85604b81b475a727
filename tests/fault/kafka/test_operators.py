"""An operator that is frozen between its claim and its deed, and taken for dead meanwhile: no letter is sent twice, and what the
other one did with it stays done."""

import signal
from contextlib import contextmanager

import msgspec
import pytest

from unpoison.brokers.kafka.connection import Connection
from unpoison.errors import LetterNotFound
from unpoison.model.verdict import ErrorClassification
from unpoison.port.broker import Dead, Settlement
from unpoison.testing import given
from unpoison.testing.processes import Child, Gate
from unpoison.testing.running import drained

DEEDS = ("sending letters again", "writing what became of letters")


@contextmanager
def frozen_with_a_claim(deal):
    """A process that has claimed letters, and goes on to deal with them when the block has ended."""
    claimed, goes_on = Gate("claimed"), Gate("goes on")
    store = Connection.must_store

    def must_store(connection, copies, what):
        if what in DEEDS and not claimed.is_open():
            claimed.open()
            goes_on.wait()
        store(connection, copies, what)

    def work():
        Connection.must_store = must_store
        deal()

    with Child(work) as child:
        claimed.wait()
        child.send(signal.SIGSTOP)
        yield
        goes_on.open()
        child.send(signal.SIGCONT)
        assert child.wait() == 0


def consumed(lab):
    received = []

    def handle(body: bytes) -> None:
        received.append(body)

    drained(given.consumer(lab.app(), "orders", handle))
    return received


def states(lab):
    return [letter.state for letter in lab.dlq("orders").letters(state=None)]


def replay_nothing(lab):
    assert lab.dlq("orders").replay_all().replayed == (), "told as sent what was stopped"


@pytest.mark.long
@pytest.mark.parametrize("others", ["the same consumers", "other consumers"])
def test_a_copy_that_comes_after_its_letter_was_sent_by_somebody_else_does_not_count(lab, others):
    given.dead_letters(lab, "orders", [b"0", b"1", b"2"])
    with frozen_with_a_claim(lambda: replay_nothing(lab)):
        assert lab.dlq("orders").replay_all().count == 3
        received = consumed(lab) if others == "other consumers" else []
    received += consumed(lab)
    assert sorted(received) == [b"0", b"1", b"2"]
    assert states(lab) == ["replayed"] * 3
    assert lab.broker("orders").depth("orders").empty


@pytest.mark.long
def test_a_late_copy_of_a_letter_that_must_run_alone_does_not_count_either(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    (held,) = broker.fetch("orders", 1)
    crashed = msgspec.structs.replace(given.letter_of(held), classification=ErrorClassification.CRASH)
    broker.settle(Settlement(dead=[Dead(held, crashed)]))
    broker.close()
    with frozen_with_a_claim(lambda: replay_nothing(lab)):
        assert lab.dlq("orders").replay_all().count == 1
        received = consumed(lab)
    assert received + consumed(lab) == [b"0"]
    assert lab.broker("orders").depth("orders").empty


def test_a_letter_that_was_discarded_meanwhile_is_not_sent(lab):
    given.dead_letters(lab, "orders", [b"0"])
    with frozen_with_a_claim(lambda: replay_nothing(lab)):
        dlq = lab.dlq("orders")
        dlq.discard(dlq.peek()[0].id)
    assert consumed(lab) == []
    assert states(lab) == ["discarded"]


@pytest.mark.long
def test_a_letter_that_was_sent_meanwhile_is_not_told_as_discarded(lab):
    given.dead_letters(lab, "orders", [b"0"])

    def discard():
        dlq = lab.dlq("orders")
        with pytest.raises(LetterNotFound):
            dlq.discard(dlq.peek()[0].id)

    with frozen_with_a_claim(discard):
        assert lab.dlq("orders").replay_all().count == 1
    assert consumed(lab) == [b"0"]
    assert states(lab) == ["replayed"]
