"""What somebody held is done once its holder says so, even if the server was slow and has it twice."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from unpoison.brokers.kafka.names import HELD, Names
from unpoison.brokers.kafka.partition import Assignment, Partition
from unpoison.brokers.kafka.waiting import RetryWaiting

NAMES = Names("orders", "unpoison")


@dataclass
class Read:
    """A record as the client gives it."""

    at: int
    pairs: dict[str, bytes] = field(default_factory=dict)

    def offset(self):
        return self.at

    def headers(self):
        return list(self.pairs.items())

    def __len__(self):
        return 1


def held(at):
    return Read(at, {"x-unpoison-ref": b"orders/0/7#me", "x-unpoison-holder": b"me"})


def note(at):
    return Read(at, {"x-unpoison-ref": b"orders/0/7#me"})


@pytest.mark.parametrize("records", [[held(0), note(1)], [held(0), held(1), note(2)]], ids=["once", "twice"])
def test_what_its_holder_has_settled_is_done(records):
    waiting = RetryWaiting(SimpleNamespace(name="another"), NAMES, Assignment(NAMES.retry, lambda: None))
    part = Partition(NAMES.retry, HELD)
    part.take_over(-1001, None)
    waiting.arrange(part, part.arrive(records[:-1]))
    assert part.first_unfinished == 0
    waiting.arrange(part, part.arrive(records[-1:]))
    assert part.first_unfinished == len(records)
