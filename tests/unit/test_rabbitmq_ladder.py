"""Delays on RabbitMQ: digit by digit, never less than asked for, and jitter stays jitter."""

import random
from collections import Counter

import pytest

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.delays import LONGEST, rung, way
from unpoison.brokers.rabbitmq.wire import AckRanges


def told(delay: float) -> float:
    """How long a message with this delay waits, all rounds together."""
    headers = {entry.name.decode(): properties.value(entry.value) for entry in way(delay).headers}
    rest = headers.pop("x-unpoison-wait", 0.0)
    now = sum(digit * 10 ** int(name.removeprefix("unpoison-d")) for name, digit in headers.items()) / 10
    return now + (told(rest) if rest else 0.0)


@pytest.mark.parametrize("delay", [0.001, 0.1, 0.2, 0.95, 1.0, 1.01, 4.0, 9.9, 10.0, 12.3, 60, 3600, 86400, 999_999.9, 5e6, 3e8])
def test_a_delay_is_kept_to_the_tenth_of_a_second_and_never_shortened(delay):
    assert delay - 1e-6 <= told(delay) < delay + 0.1 + 1e-6


def test_the_last_queue_of_every_way_leads_home():
    for tenths in range(1, 3000):
        headers = {entry.name: properties.value(entry.value) for entry in way(tenths / 10).headers}
        assert 1 <= headers[b"unpoison-d0"] <= 10


def test_no_two_queues_have_one_name():
    names = [rung(level, digit) for level in range(7) for digit in range(1, 11 if level == 0 else 10)]
    assert len(names) == len(set(names)) == 64
    assert way(LONGEST / 10).level == 6


def test_five_hundred_jittered_delays_do_not_come_back_together():
    chance = random.Random(7)
    for _ in range(50):
        together = Counter(round(told(chance.uniform(0, 4)) * 10) for _ in range(500))
        assert max(together.values()) <= 50


def test_a_finished_stretch_takes_one_ack():
    acks = AckRanges(clock=lambda: 0.0)
    assert acks.finish([2, 3], enough=100) == []
    assert acks.finish([1], enough=100) == [(3, True)]
    assert acks.finish([4], enough=100) == [(4, False)]


def test_a_slow_message_holds_nobody_hostage_and_is_never_acked_for():
    now = 0.0
    acks = AckRanges(clock=lambda: now)
    assert acks.finish([2, 3], enough=100) == []
    now = 0.06
    assert acks.finish([5], enough=100) == [(2, False), (3, False), (5, False)]
    assert acks.finish([6, 7], enough=2) == [(6, False), (7, False)]
    assert acks.finish([1], enough=100) == [(1, False)]
    assert acks.finish([4], enough=100) == [(4, False)]
    assert acks.finish([8, 9], enough=100) == [(9, True)]
