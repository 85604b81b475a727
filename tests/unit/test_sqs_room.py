"""A message that has room for a copy has room for all that is counted; what it waits for and its history come after that."""

import random
import string
from bisect import bisect_left

import pytest

from unpoison.brokers.sqs import copies, envelope
from unpoison.brokers.sqs.connection import LIMIT
from unpoison.brokers.sqs.names import Names
from unpoison.brokers.sqs.topology import QUEUES, Topic
from unpoison.model.message import DEPENDENCY_LIMIT, Counters, PastAttempt

CHARACTERS = string.ascii_letters + string.digits
PAST = PastAttempt(1, 1_800_000_000.25, "transient", "ConnectionError: refused")


def topic(limit):
    queues = dict.fromkeys(QUEUES, "http://127.0.0.1:1/queue") | {"later": None}
    return Topic(names=Names("orders", ""), limit=limit, letters_limit=limit, **queues)


def raw(size):
    """From another program, and no compression makes it smaller."""
    body = "".join(random.Random(7).choices(CHARACTERS, k=size))
    return {"MessageId": "9" * 36, "ReceiptHandle": "handle", "Body": body, "Attributes": {}}


def largest_with_room(there):
    return raw(bisect_left(range(there.limit), True, key=lambda size: not copies.has_room(there, raw(size + 1))))


@pytest.mark.parametrize("limit", [1024, LIMIT])
@pytest.mark.parametrize("name", ["billing:443", "\U0001f600" * DEPENDENCY_LIMIT], ids=["short", "long"])
def test_a_copy_without_any_room_to_spare_forgets_nothing_that_is_counted(limit, name):
    there = topic(limit)
    message = largest_with_room(there)
    counters = Counters(5, 1, 2, True, True, 7, 3, 1_800_000_000.123_456_7, name, 999_999, 1_234_567_890.123_456_7, (PAST,))
    made = copies.again(there, envelope.look(message), message, counters, 600.0)
    assert made.size <= limit
    kept = envelope.look({**message, "MessageAttributes": made.entry["MessageAttributes"]}).counters
    assert (kept.attempts, kept.vanished, kept.losses, kept.put_off, kept.waited) == (5, 1, 2, 999_999, counters.waited)


def test_a_copy_with_room_tells_what_its_message_waits_for_and_its_history():
    counters = Counters(attempts=1, waits_for="billing:443", history=(PAST,))
    made = copies.again(topic(LIMIT), envelope.look(raw(10)), raw(10), counters)
    assert envelope.look({**raw(10), "MessageAttributes": made.entry["MessageAttributes"]}).counters == counters
