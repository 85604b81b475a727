"""Letters that another operator has claimed: whoever deals with all the others leaves them, and their claims, alone."""

import pytest

from unpoison.brokers.nats.claims import Claims
from unpoison.testing import given

LETTERS = 60


@pytest.mark.parametrize("claimed", [[1], [30], [1, 30, 60], [60]], ids=str)
@pytest.mark.parametrize("command", ["replay_all", "purge"])
def test_what_another_operator_has_claimed_is_neither_sent_nor_deleted(lab, claimed, command):
    given.dead_letters(lab, "orders", [str(n).encode() for n in range(LETTERS)])
    other = Claims(lab.broker("orders").client, "orders")
    assert other.take(claimed, "discarded") == claimed
    dlq = lab.dlq("orders")
    result = getattr(dlq, command)()
    assert (result.count if command == "replay_all" else result.purged) == LETTERS - len(claimed)
    assert [letter.id for letter in dlq.letters()] == [f"orders-{number}" for number in claimed]
    assert sorted(other.there()) == claimed
    other.release(claimed)
    assert not other.there()
    assert dlq.replay_all().count == len(claimed)
    assert not dlq.count()
