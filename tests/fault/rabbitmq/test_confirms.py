"""What if confirms are late, or the network is gone without a word? Nothing is let go too early; nobody settles what he lost."""

import threading

import msgspec
import pytest

from tests.fault.rabbitmq.amqp_proxy import AMQPProxy
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import Counters
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until


@pytest.fixture
def proxy(lab):
    with AMQPProxy(lab.url) as proxy:
        yield proxy


@pytest.fixture
def far(proxy):
    """A consumer on the other side of the proxy."""
    broker = RabbitMQBroker(proxy.url)
    broker.open(["orders"])
    yield broker
    proxy.thaw()
    broker.close()


class Beside:
    """A call in a thread of its own, that may or may not come to its end."""

    def __init__(self, call):
        self._call = call
        self.raised: BaseException | None = None
        self.result = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.result = self._call()
        except Exception as error:  # looked at by the test
            self.raised = error

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def wait(self):
        self._thread.join(60)
        assert self.has_ended


def retried(delivery):
    return Settlement(kept=[Kept(delivery, msgspec.structs.replace(delivery.counters, attempts=1))])


def count(lab, queue="orders"):
    return lab.broker("orders").connections.topology().count(queue)[0]


def test_no_original_is_let_go_before_its_copy_is_confirmed(lab, proxy, far):
    lab.broker("orders").publish(given.messages("orders", 1))
    (delivery,) = far.fetch("orders", 1)
    proxy.withhold_confirms()
    settling = Beside(lambda: far.settle(retried(delivery)))
    wait_until(lambda: proxy.withheld > 0, lambda: "No confirm came")
    assert not settling.has_ended
    proxy.cut()
    settling.wait()
    assert isinstance(settling.raised, BrokerUnavailable | OwnershipLost)
    wait_until(lambda: count(lab) == 2, lambda: f"{count(lab)} messages instead of the original and its copy")


def test_once_the_copy_is_confirmed_the_original_goes(lab, proxy, far):
    lab.broker("orders").publish(given.messages("orders", 1))
    (delivery,) = far.fetch("orders", 1)
    proxy.withhold_confirms()
    settling = Beside(lambda: far.settle(retried(delivery)))
    wait_until(lambda: proxy.withheld > 0, lambda: "No confirm came")
    proxy.release_confirms()
    settling.wait()
    assert settling.raised is None
    (again,) = far.fetch("orders", 1)
    assert again.counters == Counters(attempts=1)
    far.settle(Settlement(gone=[again]))
    far.close()
    assert lab.broker("orders").depth("orders").empty


def test_no_suspect_is_handed_out_before_its_start_is_on_record(lab, proxy, far):
    direct = lab.broker("orders")
    direct.publish(given.messages("orders", 1))
    (delivery,) = direct.fetch("orders", 1)
    direct.settle(Settlement(kept=[Kept(delivery, Counters(vanished=2, alone=True))]))
    proxy.withhold_confirms()
    taking = Beside(lambda: far.take_suspect("orders", "host-1"))
    wait_until(lambda: proxy.withheld > 0, lambda: "No confirm came")
    assert not taking.has_ended
    proxy.release_confirms()
    taking.wait()
    assert taking.raised is None
    assert taking.result.body == b"0"


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_consumer_that_was_cut_off_without_a_word_cannot_settle_what_another_has_done(lab, proxy):
    lab.broker("orders").publish(given.messages("orders", 1))
    far = RabbitMQBroker(f"{proxy.url}?heartbeat=2")
    far.open(["orders"])
    (held,) = far.fetch("orders", 1)
    proxy.freeze()
    wait_until(lambda: count(lab) == 1, lambda: "The server did not take it back", 60)
    near = lab.broker("orders")
    (again,) = near.fetch("orders", 1)
    assert again.counters.vanished == 1
    wait_until(lambda: not held.receipt.holder.alive, lambda: "The one that was cut off noticed nothing", 60)
    proxy.thaw()
    with pytest.raises(OwnershipLost):
        far.settle(Settlement(gone=[held]))
    near.settle(Settlement(gone=[again]))
    far.close()
    near.close()
    assert lab.broker("orders").depth("orders").empty
