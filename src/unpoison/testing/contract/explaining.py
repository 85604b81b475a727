"""It can be told what a source waits for, and from whom messages came back."""

import os
import socket
import time

import pytest

from unpoison.port.broker import Capability, ExplainsWaits
from unpoison.testing import given
from unpoison.testing.lab import Lab
from unpoison.testing.running import Journal, drained


def test_it_is_said_how_many_messages_came_back_from_a_consumer_that_vanished(lab: Lab) -> None:
    handled: list[int] = []
    app = given.consumer(lab.app(), "orders", handled.append, schema=int)
    app.publish_many("orders", range(3))
    with Journal() as journal:
        vanishing = lab.broker("orders")
        assert len(vanishing.fetch("orders", 10)) == 3
        vanishing.close()
        drained(app)
        said = journal.of("takeover")
    assert sorted(handled) == [0, 1, 2]
    assert sum(int(line.removeprefix("Source 'orders': ").split()[0]) for line in said) == 3, said
    assert all("vanished" in line for line in said)


def test_a_broker_that_can_tells_when_the_next_message_is_due(lab: Lab) -> None:
    broker = lab.broker("orders")
    if not isinstance(broker, ExplainsWaits):
        pytest.skip("this broker does not say what is delayed until when")
    broker.publish([*given.messages("orders", 1, delay=600), *given.messages("orders", 1, delay=7200)])
    assert not broker.fetch("orders", 10)
    due = broker.waits("orders").due
    assert due is not None
    assert 500 < due - time.time() < 700


def test_a_broker_that_can_tells_which_other_consumers_hold_messages(lab: Lab) -> None:
    lab.needs(Capability.EXACT_DEPTH)
    broker, other = lab.broker("orders"), lab.broker("orders")
    assert isinstance(broker, ExplainsWaits)
    assert isinstance(other, ExplainsWaits)
    other.publish(given.messages("orders", 2))
    assert len(other.fetch("orders", 10)) == 2
    me = f"{socket.gethostname()}:{os.getpid()}" if Capability.SHARED in lab.capabilities else "another consumer of this process"
    assert broker.waits("orders").holders == (me,)
    assert other.waits("orders").holders == (), "it is not waiting for itself"
