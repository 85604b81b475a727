"""What became of each message that Redis did not store?"""

import pytest

from tests.contract.redis_lab import RedisLab
from unpoison.brokers.redis.names import LATER_MESSAGES
from unpoison.errors import BrokerUnavailable, PublishFailed, Refusal
from unpoison.testing import given


@pytest.fixture
def lab(tmp_path, redis):
    with RedisLab(redis, tmp_path) as lab:
        yield lab


def test_without_the_right_to_write_nothing_of_a_batch_is_stored(lab):
    app = lab.app()
    app.publish("orders", 0)
    lab._permit("%R~orders", "~unpoison:*")
    with pytest.raises(PublishFailed, match=r"docs/redis\.md") as caught:
        app.publish_many("orders", [1, 2])
    assert isinstance(caught.value, BrokerUnavailable)
    assert [each.refusal for each in caught.value.refused] == [Refusal.NOT_PERMITTED] * 2
    with pytest.raises(PublishFailed) as caught:
        app.publish("orders", 3)
    assert [each.refusal for each in caught.value.refused] == [Refusal.NOT_PERMITTED]
    lab._permit("~*")
    assert [delivery.body for delivery in lab.broker("orders").fetch("orders", 10)] == [b"0"]


def test_what_redis_has_carried_out_of_a_transaction_counts_as_stored(lab):
    """It checks the kind of a key only when it carries a command out, and takes nothing back then."""
    broker = lab.broker("orders")
    broker.connection.ask("orders", ("SET", broker.keys("orders")[LATER_MESSAGES], "somebody else's"))
    outcome = broker.publish([*given.messages("orders", 2), *given.messages("orders", 1, first=2, delay=60.0)])
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == {2: Refusal.OTHER}
    assert not outcome.unknown
    assert [delivery.body for delivery in broker.fetch("orders", 10)] == [b"0", b"1"]
