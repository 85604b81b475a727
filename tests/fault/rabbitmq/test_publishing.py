"""RabbitMQ closes the channel over one message that it does not take, and says nothing of the others."""

import re

import pytest

from tests.contract.rabbitmq_lab import RabbitMQLab
from tests.servers_plugin import private_or_skip
from unpoison.brokers.rabbitmq import publishing
from unpoison.errors import PayloadError, PublishFailed, Refusal
from unpoison.model.message import Outgoing
from unpoison.testing import given

LIMIT = 1_000
BODIES = [b"0", b"x" * 2_000, b"2", b"3", b"y" * 3_000, b"5"]


@pytest.fixture(scope="module", params=["rabbitmq", pytest.param("rabbitmq-4", marks=pytest.mark.long)])
def server(request):
    with private_or_skip(request.param, settings={"max_message_size": str(LIMIT)}) as server:
        yield server


@pytest.fixture
def lab(tmp_path, server):
    with RabbitMQLab(server, tmp_path) as lab:
        yield lab


def messages(bodies=BODIES) -> list[Outgoing]:
    return [Outgoing(f"id-{number}", "orders", body) for number, body in enumerate(bodies)]


def stored(lab) -> list[str]:
    """The ids of what is in the queue."""
    broker = lab.broker("orders")
    return [delivery.id for delivery in broker.fetch("orders", 100)]


def test_one_message_that_is_too_large_takes_no_other_one_with_it(lab):
    outcome = lab.broker("orders").publish(messages())
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys((1, 4), Refusal.TOO_LARGE)
    assert "larger than" in outcome.refused[1].reason
    assert not outcome.unknown
    assert set(stored(lab)) == {"id-0", "id-2", "id-3", "id-5"}


def test_a_server_that_does_not_tell_its_limit_is_asked_one_by_one(lab, monkeypatch):
    monkeypatch.setattr(publishing, "_LIMIT", re.compile("no such words"))
    outcome = lab.broker("orders").publish(messages())
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys((1, 4), Refusal.OTHER)
    assert not outcome.unknown
    found = stored(lab)
    assert set(found) == {"id-0", "id-2", "id-3", "id-5"}
    assert all(found.count(id_) <= 2 for id_ in found), "one that had been stored was sent once more, under its id"


def test_what_an_earlier_publish_has_stored_is_left_alone(lab):
    broker = lab.broker("orders")
    given.publish(broker, messages([b"%d" % number for number in range(500)]))
    assert set(broker.publish(messages([b"x" * 2_000])).refused) == {0}
    assert len(broker.fetch("orders", 600)) == 500


def test_an_app_says_which_message_was_too_large(lab):
    app = lab.app()
    with pytest.raises(PublishFailed) as caught:
        app.publish_many("orders", BODIES)
    assert [each.position for each in caught.value.refused] == [1, 4]
    assert [each.position for each in caught.value.stored] == [0, 2, 3, 5]
    assert caught.value.is_about_the_messages
    with pytest.raises(PayloadError, match="larger than"):
        app.publish("orders", BODIES[1])


def test_what_may_not_be_written_is_refused(lab):
    broker = lab.broker("orders")
    with lab.nothing_can_be_published():
        outcome = broker.publish(messages([b"0", b"1", b"2"]))
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys(
        range(3), Refusal.NOT_PERMITTED
    )
    assert not outcome.unknown
    assert stored(lab) == []


def test_a_full_queue_refuses(lab, server):
    limited = {"durable": True, "arguments": {"x-queue-type": "classic", "x-max-length": 2, "x-overflow": "reject-publish"}}
    server.http("PUT", f"/api/queues/{lab.vhost}/orders", limited)
    outcome = lab.broker("orders").publish(messages([b"0", b"1", b"2", b"3"]))
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys((2, 3), Refusal.NO_ROOM)
    assert stored(lab) == ["id-0", "id-1"]


def test_a_queue_that_somebody_deletes_is_made_again_for_what_was_for_it(lab, server):
    broker = lab.broker("orders")
    given.publish(broker, messages([b"0"]))
    server.http("DELETE", f"/api/queues/{lab.vhost}/orders")
    outcome = broker.publish(messages([b"1", b"2"]))
    assert (dict(outcome.refused), dict(outcome.unknown)) == ({}, {})
    assert stored(lab) == ["id-0", "id-1"]
