"""What if the queue is a plain list, as LPUSH makes it? It can be adopted: nothing of it is lost, and what that costs is said."""

import threading

import pytest

from tests.fault.redis.redis_parts import bodies, opened, raw
from unpoison import App
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.port.broker import Depth, Settlement
from unpoison.testing import given
from unpoison.testing.processes import Child, Gate
from unpoison.testing.running import drained


@pytest.fixture
def url(redis):
    return f"{redis.fresh()}?list=orders"


def test_what_was_pushed_is_handled_in_order_retried_dead_lettered_and_replayed(url):
    seen: list[tuple[int, int]] = []

    def handle(number: int, delivery: Delivery) -> None:
        seen.append((number, delivery.attempt))
        if number == 3 or (number == 1 and delivery.attempt == 1):
            raise ConnectionError("not now")

    app = given.consumer(App(url), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    with raw(url) as producer:
        producer.lpush("orders", *range(5))
        drained(app)
        assert [number for number, attempt in seen if attempt == 1] == [0, 1, 2, 3, 4]
        assert sorted(number for number, attempt in seen if attempt == 2) == [1, 3]
        (letter,) = app.dlq("orders").letters()
        assert letter.body == b"3"
        app.dlq("orders").replay_all()
        producer.lpush("orders", 7)
    drained(app)
    assert {number for number, _ in seen[7:]} == {3, 7}
    app.close()


def test_what_it_costs_is_said_when_it_is_opened(url):
    with opened(url) as broker:
        (finding,) = broker.open(["orders"])
        assert finding.name == "list-source"
        assert "XADD orders" in finding.fix


def test_an_empty_list_stays_a_list_for_its_producers(url):
    with opened(url) as broker, raw(url) as producer:
        assert list(broker.fetch("orders", 10)) == []
        assert broker.depth("orders") == Depth()
        producer.lpush("orders", "x")
        assert broker.depth("orders") == Depth(ready=1)
        held = broker.fetch("orders", 10)
        assert (bodies(held), broker.depth("orders")) == ([b"x"], Depth(leased=1))
        broker.settle(Settlement(gone=held))
        assert broker.depth("orders") == Depth()
        assert producer.type("orders") == b"none"


def test_what_unpoison_publishes_to_it_has_its_id_key_headers_and_delay(url):
    app = App(url)
    id_ = app.publish("orders", {"a": 1}, key="k", headers={"h": "1"})
    app.publish("orders", {"a": 2}, delay=3600)
    app.close()
    with opened(url) as broker:
        assert broker.depth("orders") == Depth(ready=1, delayed=1)
        (delivery,) = broker.fetch("orders", 10)
        assert (delivery.id, delivery.key, dict(delivery.headers), delivery.body) == (id_, "k", {"h": "1"}, b'{"a":1}')


def test_a_waiting_consumer_is_told_of_what_others_push(url):
    rung = threading.Event()
    with opened(url, "orders", ring=rung.set) as broker, raw(url) as producer:
        assert list(broker.fetch("orders", 10)) == []
        producer.lpush("orders", "x")
        assert bodies(given.fetched_when_rung(broker, "orders", rung)) == [b"x"]


def test_what_a_killed_consumer_had_popped_comes_back(url):
    holding = Gate("holding")

    def hold() -> None:
        with opened(url) as broker:
            broker.fetch("orders", 10)
            holding.open()
            threading.Event().wait()

    with raw(url) as producer:
        producer.lpush("orders", "a", "b")
    with Child(hold) as child:
        holding.wait()
        child.kill()
    rung = threading.Event()
    with opened(url, "orders", ring=rung.set) as broker:
        rung.set()
        back = given.fetched_when_rung(broker, "orders", rung)
        assert bodies(back) == [b"a", b"b"]
        assert [delivery.counters.vanished for delivery in back] == [1, 1]
