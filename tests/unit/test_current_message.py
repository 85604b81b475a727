"""Which message runs here? Asked by handlers in this process, by log lines, and of what a batch carries along."""

import asyncio
import itertools
import logging
import threading

import pytest
import structlog

from unpoison import App, Backoff, CurrentMessage, MessageFields, current_message
from unpoison.model.message import UNTRIED, Counters, Delivery
from unpoison.worker import wire

numbers = itertools.count()


@pytest.fixture(params=["thread", "inline"])
def isolation(request):
    return request.param


def test_a_handler_in_this_process_knows_its_message(isolation):
    app, seen = App(f"memory://current-{next(numbers)}"), []

    @app.consumer("orders", isolation=isolation, concurrency=3, max_attempts=2, backoff=Backoff.immediate())
    def handle(body: bytes):
        seen.append((body, current_message()))
        if body == b"2":
            raise ConnectionError

    app.publish("orders", b"1", id="a")
    app.publish("orders", b"2", id="b")
    assert current_message() is None
    app.run(until_empty=True)
    assert current_message() is None
    assert sorted(seen) == [(b"1", ("a", "orders", 1)), (b"2", ("b", "orders", 1)), (b"2", ("b", "orders", 2))]


def test_tasks_know_the_message_of_the_handler_that_started_them():
    app, seen = App(f"memory://current-{next(numbers)}"), set()

    async def inner(body):
        await asyncio.sleep(0.001)
        seen.add((body.decode(), current_message()))

    @app.consumer("orders")
    async def handle(body: bytes):
        await asyncio.gather(inner(body), asyncio.create_task(inner(body)))
        await asyncio.to_thread(lambda: seen.add((body.decode(), current_message())))

    for name in "abc":
        app.publish("orders", name.encode(), id=name)
    app.run(until_empty=True)
    assert seen == {(name, CurrentMessage(name, "orders", 1)) for name in "abc"}


def test_a_batch_of_bare_bodies_names_its_messages():
    tried = Counters(attempts=2)
    batch = [Delivery(0, "orders", name, b"", counters=counters) for name, counters in (("a", UNTRIED), ("b", tried))]
    said = wire.Run(0, 7, [b"", b""], names=wire.names_of(batch))
    assert wire.names_in(said) == wire.names_in(wire.Run(0, 7, [], batch)) == [("a", 1), ("b", 3)]


def record(name="shop", **extra):
    made = logging.makeLogRecord({"name": name, "msg": "sold", **extra})
    return made


def in_message(do):
    """What `do` returns inside of a handler."""
    app, found = App(f"memory://current-{next(numbers)}"), []
    app.consumer("orders", isolation="inline")(lambda body: found.append(do()))
    app.publish("orders", b"1", id="a")
    app.run(until_empty=True)
    return found[0]


def filtered(made, **options):
    assert MessageFields(**options).filter(made)
    return {name: vars(made).get(name) for name in ("message_id", "source", "attempt") if name in vars(made)}


def test_the_filter_adds_what_is_missing_and_changes_nothing():
    assert in_message(lambda: filtered(record())) == {"message_id": "a", "source": "orders", "attempt": 1}
    assert in_message(lambda: filtered(record(attempt=7))) == {"message_id": "a", "source": "orders", "attempt": 7}
    assert in_message(lambda: filtered(record("unpoison", source="emails"))) == {"source": "emails"}


def test_outside_of_a_message_there_is_nothing_or_what_was_asked_for():
    assert filtered(record()) == {}
    assert filtered(record(), otherwise="-") == {"message_id": "-", "source": "-", "attempt": "-"}
    assert filtered(record("unpoison", source="emails"), otherwise="-") == {"message_id": "-", "source": "emails", "attempt": "-"}


def test_a_thread_that_lanes_do_not_know_has_no_message():
    def elsewhere():
        found = []
        thread = threading.Thread(target=lambda: found.append(current_message()))
        thread.start()
        thread.join()
        return found

    assert in_message(elsewhere) == [None]


def test_structlog_gets_them_from_a_processor():
    def with_message(logger, name, line):
        if (now := current_message()) is not None:
            line.update(message_id=now.id, source=now.source, attempt=now.attempt)
        return line

    bound = structlog.wrap_logger(structlog.ReturnLogger(), processors=[with_message, structlog.processors.KeyValueRenderer()])
    assert in_message(lambda: bound.info("sold")) == "event='sold' message_id='a' source='orders' attempt=1"
    assert bound.info("sold") == "event='sold'"
