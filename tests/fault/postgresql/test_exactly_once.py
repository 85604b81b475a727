"""A handler that ends its message with its own transaction has its effects exactly once, whoever is killed at whatever moment."""

import psycopg
import pytest

from tests.contract.postgresql_lab import PostgreSQLLab
from unpoison.brokers.postgresql import settle
from unpoison.errors import CapabilityError, OwnershipLost
from unpoison.model.message import Delivery
from unpoison.port.broker import Depth
from unpoison.testing import given, kill_points

SHIP = "insert into shipments values (%s, %s)"


@pytest.fixture
def lab(tmp_path, postgresql):
    with PostgreSQLLab(tmp_path, postgresql.url) as lab:
        lab.modules = (*lab.modules, "unpoison.brokers.postgresql", __name__)
        with psycopg.connect(lab.url, autocommit=True) as connection:
            connection.execute("create table shipments (source text, number int)")
        yield lab


def consumer(lab, source, handle):
    return given.consumer(lab.app(), source, handle, isolation="inline", max_attempts=20)


def shipping(lab):
    def ship(number: int, delivery: Delivery) -> None:
        with psycopg.connect(lab.url) as connection:
            connection.execute(SHIP, (delivery.source, number))
            settle(connection, delivery)
            connection.commit()
        if number == 1:
            raise ConnectionError("after the commit: it is done all the same")

    return ship


def shipped(lab, source):
    with psycopg.connect(lab.url) as connection:
        return sorted(n for (n,) in connection.execute("select number from shipments where source = %s", (source,)).fetchall())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stride", [10, pytest.param(kill_points.STRIDE, marks=pytest.mark.long)])
def test_effects_happen_exactly_once_though_the_consumer_is_killed_at_any_line(lab, monkeypatch, stride):
    monkeypatch.setattr(kill_points, "STRIDE", stride)
    # What the killed one held is looked for at every fetch: else each of some hundred kills costs half a second of waiting.
    monkeypatch.setattr("unpoison.brokers.postgresql.broker.TAKEOVER_EVERY", 0.0)
    monkeypatch.setattr("unpoison.brokers.postgresql.owner.LOOK_EVERY", 0.02)

    def prepare(source):
        lab.app().publish_many(source, range(2))

    def consume(source):
        consumer(lab, source, shipping(lab)).run(until_empty=True)

    def check(source):
        consume(source)
        assert shipped(lab, source) == [0, 1]
        assert lab.broker(source).depth(source) == Depth()
        with psycopg.connect(lab.url) as connection:
            assert connection.execute("select count(*) from unpoison_settled").fetchone() == (0,)

    kill_points.sweep(lab, "ship", prepare, consume, check)


def test_what_is_rolled_back_comes_again(lab):
    tries = []

    def ship(number: int, delivery: Delivery) -> None:
        with psycopg.connect(lab.url) as connection:
            connection.execute(SHIP, (delivery.source, number))
            settle(connection, delivery)
            tries.append(number)
            if len(tries) < 3:
                raise ConnectionError("before the commit")

    app = consumer(lab, "orders", ship)
    app.publish("orders", 7)
    app.run(until_empty=True)
    assert tries == [7, 7, 7]
    assert shipped(lab, "orders") == [7]


def test_a_message_that_somebody_else_has_by_now_cannot_be_settled(lab):
    broker = lab.broker("orders")
    lab.app().publish("orders", 1)
    held = broker.fetch("orders", 1)
    lab.steal(broker, held)
    with psycopg.connect(lab.url) as connection, pytest.raises(OwnershipLost, match="roll the transaction back"):
        settle(connection, held[0])


def test_a_message_of_another_broker_is_refused():
    with pytest.raises(CapabilityError, match="did not come from PostgreSQL"):
        settle(None, Delivery(7, "orders", "a", b""))
