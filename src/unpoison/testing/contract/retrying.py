"""A failed message is started again: at its time, not before, while others go on. A dead letter that cannot be stored waits."""

import threading
import time
from contextlib import ExitStack

import pytest

from unpoison.app import App
from unpoison.errors import Permanent, RetryLater, UnpoisonError
from unpoison.flow import ending
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery, Outgoing
from unpoison.port.broker import Kept, Settlement
from unpoison.reporting.report import Report
from unpoison.testing import given
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import PATIENCE
from unpoison.testing.running import Journal, Running, drained

HOUR = 3600.0


@trait(Trait.ORDERED)
def test_a_poison_message_does_not_stop_its_neighbours(lab: Lab) -> None:
    handled: list[int] = []

    def handle(number: int) -> None:
        if number % 5 == 0:
            raise ConnectionError("poison")
        handled.append(number)

    app = given.consumer(lab.app(), "orders", handle, max_attempts=3, backoff=Backoff.immediate())
    app.publish_many("orders", range(20))
    tally = drained(app)["orders"]
    assert handled == [number for number in range(20) if number % 5]
    assert (tally.done, tally.retried, tally.dead) == (16, 8, 4)


@trait(Trait.ORDERED)
def test_a_retry_waits_while_others_go_on(lab: Lab) -> None:
    handled: list[int] = []
    others_done = threading.Event()

    def handle(number: int) -> None:
        if number == 0:
            raise ConnectionError("not now")
        handled.append(number)
        if len(handled) == 5:
            others_done.set()

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(HOUR))
    app.publish_many("orders", range(6))
    with Running(app):
        assert others_done.wait(PATIENCE)
    assert handled == [1, 2, 3, 4, 5]
    assert lab.broker("orders").depth("orders").delayed == 1


def test_a_retry_survives_a_restart_and_then_starts(lab: Lab) -> None:
    attempts: list[int] = []
    failed = threading.Event()

    def handle(number: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            failed.set()
            raise ConnectionError("not now")

    first = given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(0.3))
    first.publish("orders", 1)
    with Running(first):
        assert failed.wait(PATIENCE)
    first.close()
    drained(given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(0.3)))
    assert attempts == [1, 2]


def test_a_message_without_a_body_waits_for_its_retry_like_any_other(lab: Lab) -> None:
    attempts: list[int] = []

    def handle(body: bytes, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt < 3:
            raise ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", handle, max_attempts=3, backoff=Backoff.fixed(0.05))
    app.publish("orders", b"", delay=0.05)
    drained(app)
    assert attempts == [1, 2, 3]


def test_a_message_is_not_started_before_its_delay_is_over(lab: Lab) -> None:
    broker = lab.broker("orders")
    lab.shift_clock(0)
    broker.publish(given.messages("orders", 1, delay=HOUR))
    assert list(broker.fetch("orders", 10)) == []
    lab.shift_clock(HOUR - 1)
    assert list(broker.fetch("orders", 10)) == []
    lab.shift_clock(2)
    assert [delivery.body for delivery in broker.fetch("orders", 10)] == [b"0"]


def test_a_retry_is_not_started_before_its_delay_is_over(lab: Lab) -> None:
    broker = lab.broker("orders")
    lab.shift_clock(0)
    broker.publish(given.messages("orders", 1))
    for _ in range(2):  # the first time it comes from the line, the second time it was waiting already
        (delivery,) = broker.fetch("orders", 10)
        broker.settle(Settlement(kept=[Kept(delivery, delivery.counters, HOUR)]))
        assert list(broker.fetch("orders", 10)) == []
        lab.shift_clock(HOUR - 1)
        assert list(broker.fetch("orders", 10)) == []
        lab.shift_clock(2)


def test_the_shorter_of_two_delays_ends_first(lab: Lab) -> None:
    broker = lab.broker("orders")
    lab.shift_clock(0)
    broker.publish([*given.messages("orders", 1, first=2, delay=2 * HOUR), *given.messages("orders", 1, first=1, delay=HOUR)])
    lab.shift_clock(3 * HOUR)
    assert [delivery.body for delivery in broker.fetch("orders", 10)] == [b"1", b"2"]


def test_counters_travel_with_a_retry(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    expected = Counters()
    for attempts in (1, 2, 3):
        (delivery,) = broker.fetch("orders", 10)
        assert delivery.counters == expected
        expected = Counters(attempts=attempts, vanished=1, interrupted=2, replays=3, first_failed_at=12.5)
        broker.settle(Settlement(kept=[Kept(delivery, expected)]))


def test_what_the_sender_wrote_survives_retries(lab: Lab) -> None:
    sent = Outgoing("1", "orders", bytes(range(256)), "customer-7", {"trace": "ü\n", "empty": ""})
    broker = lab.broker("orders")
    broker.publish([sent])
    for _ in range(3):
        (delivery,) = broker.fetch("orders", 10)
        assert (delivery.id, delivery.body, delivery.key) == (sent.id, sent.body, sent.key)
        assert dict(delivery.headers) == dict(sent.headers)
        broker.settle(Settlement(kept=[Kept(delivery, delivery.counters)]))


def test_a_message_starts_as_often_as_its_limit_says(lab: Lab) -> None:
    seen: list[int] = []

    def handle(number: int, delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        raise ConnectionError("never")

    app = given.consumer(lab.app(), "orders", handle, max_attempts=4, backoff=Backoff.immediate())
    app.publish("orders", 1)
    drained(app)
    assert seen == [1, 2, 3, 4]
    assert [letter.attempts for letter in lab.dlq("orders").peek()] == [4]


def test_a_start_that_is_not_charged_uses_up_no_attempt(lab: Lab) -> None:
    seen: list[int] = []

    def handle(number: int, delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        if len(seen) < 6:
            raise RetryLater(0)

    app = given.consumer(lab.app(), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    app.publish("orders", 1)
    tally = drained(app)["orders"]
    assert seen == [1] * 6
    assert (tally.done, tally.dead) == (1, 0)


def test_a_flood_of_retries_does_not_starve_new_messages(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 100))
    flood = broker.fetch("orders", 100)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1)) for delivery in flood]))
    broker.publish(given.messages("orders", 1, first=1000))
    seen: list[bytes] = []
    while b"1000" not in seen:
        batch = broker.fetch("orders", 10)
        broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=2)) for delivery in batch]))
        seen += [delivery.body for delivery in batch]
    before = seen[: seen.index(b"1000")]
    assert len(before) == len(set(before)), "a retry was started again before the new message was started at all"


def test_a_flood_of_new_messages_does_not_starve_a_retry(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1, first=1000))
    (failed,) = broker.fetch("orders", 10)
    broker.settle(Settlement(kept=[Kept(failed, Counters(attempts=1))]))
    broker.publish(given.messages("orders", 100))
    seen: list[bytes] = []
    for number in range(20):
        batch = broker.fetch("orders", 10)
        broker.settle(Settlement(gone=batch))
        broker.publish(given.messages("orders", 10, first=2000 + 10 * number))
        seen += [delivery.body for delivery in batch]
    assert b"1000" in seen


@pytest.mark.parametrize("wrong_by", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_consumer_whose_clock_is_an_hour_wrong_shortens_no_delay(lab: Lab, wrong_by: float) -> None:
    fail_with_a_wrong_clock(lab, wrong_by, Backoff.fixed(600))
    broker = lab.broker("orders")
    assert broker.depth("orders").delayed == 1
    assert list(broker.fetch("orders", 10)) == []


@pytest.mark.parametrize("wrong_by", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_consumer_whose_clock_is_an_hour_wrong_prolongs_no_delay(lab: Lab, wrong_by: float) -> None:
    fail_with_a_wrong_clock(lab, wrong_by, Backoff.fixed(0.2))
    handled: list[int] = []
    drained(given.consumer(lab.app(), "orders", handled.append, schema=int))
    assert handled == [1]


def fail_with_a_wrong_clock(lab: Lab, wrong_by: float, backoff: Backoff) -> None:
    """Let a message fail in a consumer whose own clock is wrong. The broker's is right."""

    def fail(number: int) -> None:
        raise ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", fail, backoff=backoff, max_attempts=None)
    app.publish("orders", 1)
    tally = given.consumed(app, "orders", lab.broker("orders"), clock=lambda: time.time() + wrong_by)
    assert tally.retried >= 1  # more often where a short delay is over before a slow consumer has ended


# If dead letters cannot be stored the source is paused and says so once: nothing is lost, nothing spins.


TRIES = 5


@trait(Trait.FAULTY_BROKER | Trait.ORDERED)
def test_while_dead_letters_cannot_be_stored_the_source_stands_still_and_then_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, starts = _six_with_poison(lab)
    tried_again = _tried_again(monkeypatch)
    with Journal() as journal, ExitStack() as fault:
        fault.enter_context(lab.dead_letters_unwritable())
        with Running(app, until_empty=True) as running:
            assert tried_again.wait(PATIENCE)
            (told,) = journal.of("pause")
            assert "'orders' is paused" in told
            assert starts in ([0, 1], [0, 1, 2]), "it went on"  # a slow machine settles, and so pauses, before the third
            depth = lab.broker("orders").depth("orders")
            left = depth.ready + depth.delayed + depth.leased if lab.counts_exactly else 6
            assert (left, depth.empty, depth.dead) == (6, False, 0)
            fault.close()
            tally = running.wait()["orders"]
        assert len(journal.of("resume")) == 1
    assert starts == [0, 1, 2, 3, 4, 5]
    assert (tally.done, tally.dead) == (5, 1)
    assert [letter.body for letter in lab.dlq("orders").letters()] == [b"1"]


@trait(Trait.FAULTY_BROKER | Trait.ORDERED)
def test_a_consumer_that_is_stopped_while_dead_letters_cannot_be_stored_loses_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, starts = _six_with_poison(lab)
    tried_again = _tried_again(monkeypatch)
    with lab.dead_letters_unwritable(), Running(app) as running:
        assert tried_again.wait(PATIENCE)
        running.run.stop(grace=0)
        running.wait()
        assert lab.dlq("orders").count() == 0
    assert drained(app)["orders"].dead == 1
    assert set(starts) == set(range(6))
    assert [letter.body for letter in lab.dlq("orders").letters()] == [b"1"]


def _six_with_poison(lab: Lab) -> tuple[App, list[int]]:
    """Six messages, the second of them poison; an app that consumes them, and the list of its starts."""
    starts: list[int] = []

    def handle(number: int) -> None:
        starts.append(number)
        if number == 1:
            raise Permanent("poison")

    app = given.consumer(lab.app(prefetch=3), "orders", handle)
    app.publish_many("orders", range(6))
    return app, starts


def _tried_again(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set once the consumer has tried in vain a few times, which it does without waiting long here."""
    enough, told, tries = threading.Event(), Report.paused, []

    def paused(self: Report, source: str, error: UnpoisonError) -> None:
        told(self, source, error)
        tries.append(source)
        if len(tries) == TRIES:
            enough.set()

    monkeypatch.setattr(Report, "paused", paused)
    monkeypatch.setattr(ending, "RETRY_BROKER", (0.01,))
    return enough
