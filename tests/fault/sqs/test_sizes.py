"""A message as large as SQS takes any, from somebody else, has no room for anything of ours and goes its way all the same."""

import random
import string
from collections import Counter

import pytest

from tests.contract.sqs_lab import SQSLab
from tests.contract.sqs_proxy import LIMIT, size_of
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.running import drained

CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " "
ONE = {"trace": {"DataType": "String", "StringValue": "abc"}}
TEN = {f"name{number}": {"DataType": "String", "StringValue": "\u00fc" * 20_000} for number in range(10)}
"""As JSON inside of ours, where ten others leave no place, each of these characters has six bytes instead of two."""


@pytest.fixture
def lab(tmp_path, moto):
    with SQSLab(moto, tmp_path, with_proxy=True) as lab:
        yield lab


def as_large_as_can_be(attributes: dict, limit: int = LIMIT) -> str:
    """A body that no compression makes smaller, and that leaves not one byte free."""
    taken = sum(len(name) + len("String") + len(value["StringValue"].encode()) for name, value in attributes.items())
    return "".join(random.Random(7).choices(CHARACTERS, k=limit - taken))


@pytest.mark.parametrize("source", ["orders", pytest.param("orders.fifo", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "attributes",
    [{}, pytest.param(ONE, marks=pytest.mark.long), pytest.param(TEN, marks=pytest.mark.long)],
    ids=["none", "one", "ten"],
)
def test_one_that_fails_is_retried_ends_as_a_letter_and_holds_up_nobody(lab, source, attributes):
    large, starts, attempts = as_large_as_can_be(attributes), Counter(), []

    def handle(body: bytes, delivery: Delivery) -> None:
        starts[len(body)] += 1
        if len(body) == len(large):
            attempts.append(delivery.attempt)
            raise ConnectionError("never")

    app = given.consumer(lab.app(), source, handle, max_attempts=3, backoff=Backoff.immediate())
    app.publish(source, b"before")
    sent_in = {"MessageGroupId": "theirs", "MessageDeduplicationId": "1"} if source.endswith(".fifo") else {}
    lab.queue(source).send(large, MessageAttributes=attributes, **sent_in)
    app.publish(source, b"later")
    tally = drained(app)[source]
    assert starts == {len(b"before"): 1, len(b"later"): 1, len(large): 3}
    assert attempts == [1, 2, 3]
    assert (tally.done, tally.dead) == (2, 1)
    (letter,) = lab.dlq(source).letters()
    assert letter.body == large.encode()
    assert dict(letter.message.headers) == {name: value["StringValue"] for name, value in attributes.items()}


@pytest.mark.long
def test_a_letter_of_it_is_sent_again_and_given_up_again(lab):
    large, seen = as_large_as_can_be({}), []

    def handle(body: bytes) -> None:
        seen.append(body)
        raise ValueError("never")

    app, dlq = given.consumer(lab.app(), "orders", handle), lab.dlq("orders")
    drained(app)
    lab.queue("orders").send(large)
    for times in (1, 2, 3):
        drained(app)
        (letter,) = dlq.letters()
        assert letter.body == large.encode()
        assert len(seen) == times
        dlq.replay_one(letter.id)
    drained(app)
    assert sorted(letter.state for letter in dlq.letters(state=None)) == ["dead", "replayed", "replayed", "replayed"]


@pytest.mark.long
def test_a_letter_of_it_that_somebody_discards_is_kept_as_discarded(lab):
    large = as_large_as_can_be({})
    app, dlq = given.consumer(lab.app(), "orders", _fail, max_attempts=1), lab.dlq("orders")
    drained(app)
    lab.queue("orders").send(large)
    drained(app)
    (letter,) = dlq.letters()
    dlq.discard(letter.id)
    (letter,) = dlq.letters(state=None)
    assert (letter.state, letter.body) == ("discarded", large.encode())


def test_a_queue_that_takes_less_has_its_own_limit(lab):
    lab.queue("orders").create(MaximumMessageSize="2048")
    large = as_large_as_can_be({}, 2048)
    lab.queue("orders").send(large)
    app = given.consumer(lab.app(), "orders", _fail, max_attempts=2, backoff=Backoff.immediate())
    tally = drained(app)["orders"]
    assert (tally.retried, tally.dead) == (1, 1)
    assert all(size_of(asked) <= 2048 for asked in lab.proxy.asked("SendMessageBatch", "orders"))
    (letter,) = lab.dlq("orders").letters()
    assert (letter.body, letter.error_type) == (large.encode(), "ConnectionError")


def test_it_waits_in_place_for_its_time(lab):
    broker = lab.broker("orders")
    lab.queue("orders").send(as_large_as_can_be({}))
    given.consumed(given.consumer(lab.app(), "orders", _fail, backoff=Backoff.fixed(600)), "orders", broker)
    (asked,) = lab.proxy.asked("ChangeMessageVisibilityBatch", "orders")
    assert [entry["VisibilityTimeout"] for entry in asked["Entries"]] == [600]
    assert lab.queue("orders").received() == []


def _fail(body: bytes) -> None:
    raise ConnectionError("not now")
