"""Is "no messages" believed? Not where the queue was too busy to count: RabbitMQ says zero then, after 250 ms."""

from types import SimpleNamespace

import pytest

from unpoison.brokers.rabbitmq import topology
from unpoison.brokers.rabbitmq.topology import COUNTED_AGAIN, Topology


@pytest.fixture
def asked(monkeypatch):
    """Answers as (seconds, messages), the last of which repeats; returns how often it was asked."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(topology, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def count(*answers):
        calls = []

        def look_at(queue):
            seconds, messages = answers[min(len(calls), len(answers) - 1)]
            calls.append(queue)
            clock.now += seconds
            return SimpleNamespace(message_count=messages, consumer_count=1)

        counting = Topology.__new__(Topology)
        monkeypatch.setattr(counting, "channel", lambda: SimpleNamespace(look_at=look_at))
        return counting.count("orders"), len(calls)

    return count


def test_a_quick_answer_is_believed_whatever_it_says(asked):
    assert asked((0.01, 0)) == ((0, 1), 1)
    assert asked((0.01, 7)) == ((7, 1), 1)


def test_a_slow_answer_is_believed_unless_it_says_none(asked):
    assert asked((0.3, 7)) == ((7, 1), 1)
    assert asked((0.26, 0), (0.26, 0), (0.01, 5)) == ((5, 1), 3)
    assert asked((0.26, 0), (0.01, 0)) == ((0, 1), 2)


def test_a_server_that_is_always_slow_is_asked_so_often_and_then_believed(asked):
    assert asked((0.26, 0)) == ((0, 1), COUNTED_AGAIN)
