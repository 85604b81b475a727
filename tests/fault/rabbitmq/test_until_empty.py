"""A run that ends when its source is empty does not wait for what other sources have delayed in the same virtual host."""

import pytest

from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.running import drained


def test_what_another_source_has_delayed_is_not_waited_for(lab):
    lab.app().publish("mails", 1, delay=3600)
    app = given.consumer(lab.app(), "orders", print)
    app.publish("orders", 1)
    assert drained(app)["orders"].done == 1
    assert lab.broker("mails").depth("mails").delayed == 1


def test_what_somebody_else_has_delayed_of_the_own_source_is_waited_for(lab):
    lab.app().publish("mails", 1, delay=3600)
    lab.app().publish("orders", 1, delay=0.7)
    assert drained(given.consumer(lab.app(), "orders", print))["orders"].done == 1


@pytest.mark.parametrize("alone", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_retry_of_the_own_source_is_waited_for(lab, alone):
    lab.app().publish("mails", 1, delay=3600)

    def handle(_: int, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise MemoryError if alone else ConnectionError("not yet")

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(0.7))
    app.publish("orders", 1)
    tally = drained(app)["orders"]
    assert (tally.done, tally.retried) == (1, 1)
