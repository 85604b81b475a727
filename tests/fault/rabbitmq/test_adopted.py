"""A queue that somebody else made, with bindings of its own: it is used, and never made by us."""

import pytest

from unpoison.brokers.rabbitmq import connections
from unpoison.errors import BrokerUnavailable, Permanent
from unpoison.flow import ending
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, Running, drained


@pytest.fixture
def raw(raw):
    raw.confirm_delivery()
    raw.exchange_declare("shop", "topic", durable=True)
    return raw


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(ending, "RETRY_BROKER", (0.05,))
    monkeypatch.setattr(connections, "CREATE_AFTER", 0.05)


def adopt(raw):
    raw.queue_declare("orders", durable=True, arguments={"x-max-priority": 5})
    raw.queue_bind("orders", "shop", "order.*")


def is_there(rabbitmq, lab, queue="orders"):
    return queue in {each["name"] for each in rabbitmq.http("GET", f"/api/queues/{lab.vhost}")}


def test_an_adopted_queue_that_is_deleted_is_not_made_again_and_goes_on_once_it_is_back(lab, raw, rabbitmq):
    adopt(raw)
    done: list[int] = []
    app = given.consumer(lab.app(), "orders", done.append)
    with Journal() as journal, Running(app):
        raw.basic_publish("shop", "order.new", b"1", mandatory=True)
        wait_until(lambda: done == [1], lambda: "Nothing was handled")
        raw.queue_delete("orders")
        journal.wait_for("pause")
        (told,) = journal.of("pause")
        assert "Queue 'orders' is not there" in told
        assert "unpoison did not make it" in told
        with pytest.raises(BrokerUnavailable, match="unpoison did not make it"):
            lab.app().publish("orders", 2)
        with pytest.raises(BrokerUnavailable, match="unpoison did not make it"):
            app.publish("orders", 2)
        assert lab.dlq("orders").count() == 0
        assert not is_there(rabbitmq, lab)
        adopt(raw)
        journal.wait_for("resume")
        raw.basic_publish("shop", "order.new", b"3", mandatory=True)
        wait_until(lambda: done == [1, 3], lambda: "It did not go on")


def test_a_start_waits_for_an_adopted_queue_that_was_deleted(lab, raw, rabbitmq):
    adopt(raw)
    lab.broker("orders")
    raw.queue_delete("orders")
    done: list[int] = []
    with Journal() as journal, Running(given.consumer(lab.app(), "orders", done.append)):
        journal.wait_for("pause")
        assert "unpoison did not make it" in journal.of("pause")[0]
        assert not is_there(rabbitmq, lab)
        adopt(raw)
        raw.basic_publish("shop", "order.new", b"1", mandatory=True)
        wait_until(lambda: done == [1], lambda: "It did not go on")


def test_letters_of_an_adopted_queue_that_was_deleted_wait_for_it(lab, raw, rabbitmq):
    def handle(_: int) -> None:
        raise Permanent("poison")

    adopt(raw)
    app = given.consumer(lab.app(), "orders", handle)
    app.publish("orders", 1)
    drained(app)
    raw.queue_delete("orders")
    letters = lab.dlq("orders")
    with pytest.raises(BrokerUnavailable, match="Queue 'orders' is not there"):
        letters.replay_all()
    assert [letter.state for letter in letters.letters()] == ["dead"]
    assert not is_there(rabbitmq, lab)
    adopt(raw)
    assert len(letters.replay_all().replayed) == 1


def test_a_queue_that_we_made_is_made_again_by_whoever_comes_next(lab, raw, rabbitmq):
    lab.broker("orders")
    raw.queue_delete("orders")
    lab.app().publish("orders", 1)
    assert is_there(rabbitmq, lab)


def test_a_queue_of_ours_that_is_handed_over_is_no_longer_made(lab, raw, rabbitmq):
    lab.broker("orders")
    raw.exchange_delete("orders.made")
    raw.queue_delete("orders")
    with pytest.raises(BrokerUnavailable, match="unpoison did not make it"):
        lab.app().publish("orders", 1)
