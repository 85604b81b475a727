"""`on_failure`: is it told of every exception, as the object that was raised, and can it hurt nothing?"""

import asyncio
import itertools
import logging
import threading

import pytest

from unpoison import App, Backoff, ConfigError, Discard, Permanent, RetryLater, Throttled
from unpoison.worker import on_failure
from unpoison.workers import in_process

numbers = itertools.count()


def app_with():
    return App(f"memory://failures-{next(numbers)}")


@pytest.fixture(params=["thread", "inline", "async"])
def consume(request):
    """Runs a handler over some bodies, in this process."""

    def run(app, handle, bodies=(b"1",), **options):
        if request.param == "async":

            @app.consumer("orders", backoff=Backoff.immediate(), **options)
            async def awaited(body: bytes):
                await asyncio.sleep(0)
                return handle(body)

        else:
            options = {"isolation": request.param, "backoff": Backoff.immediate(), **options}

            @app.consumer("orders", **options)
            def called(body: bytes):
                return handle(body)

        for body in bodies:
            app.publish("orders", body, id=f"id-{body.decode()}")
        return app.run(until_empty=True).total

    return run


def fails(body):
    local = f"local of {body.decode()}"
    raise ConnectionError(local)


@pytest.mark.parametrize("is_async", [True, False])
def test_it_gets_message_metadata_and_the_exception_itself(consume, is_async):
    app, seen = app_with(), []

    def note(who, message, metadata, error):
        trace = error.__traceback__
        while trace.tb_next is not None:
            trace = trace.tb_next
        limits = (metadata.attempt, metadata.max_attempts, metadata.last_error)
        seen.append((who, message.id, message.source, *limits, trace.tb_frame.f_locals["local"]))

    def plain(message, metadata, error):
        note("consumer", message, metadata, error)

    async def awaited(message, metadata, error):
        await asyncio.sleep(0)
        note("consumer", message, metadata, error)

    app.on_failure(lambda *about: note("app", *about))
    total = consume(app, fails, max_attempts=2, on_failure=awaited if is_async else plain)
    assert total.dead == 1
    assert seen == [
        (who, "id-1", "orders", attempt, 2, "ConnectionError: local of 1", "local of 1")
        for attempt in (1, 2)
        for who in ("consumer", "app")
    ]


def test_what_a_handler_raises_to_steer_is_no_failure(consume):
    app, seen, raised = app_with(), [], set()
    app.on_failure(lambda message, metadata, error: seen.append(repr(error)))
    steering = {b"1": RetryLater(0), b"2": Throttled(0.001), b"3": Discard("old"), b"4": Permanent("no"), b"5": ValueError("x")}

    def handle(body):
        if body not in raised:
            raised.add(body)
            raise steering[body]

    assert consume(app, handle, steering).done == 2
    assert sorted(seen) == ["Permanent('no')", "ValueError('x')"]


def test_it_is_told_of_a_body_that_does_not_fit():
    app, seen = app_with(), []
    app.on_failure(lambda message, metadata, error: seen.append((message.body, type(error).__name__, metadata.attempt)))

    @app.consumer("orders")
    def handle(order: dict):
        raise AssertionError

    app.publish("orders", b"{")
    assert app.run(until_empty=True).total.dead == 1
    assert seen == [(b"{", "Unfit", 1)]


@pytest.mark.parametrize("raised", [KeyError("dsn"), SystemExit(3)])
def test_one_that_fails_is_logged_once_for_each_kind_and_changes_nothing(consume, caplog, raised):
    app = app_with()

    @app.on_failure
    def hook(message, metadata, error):
        if message.id == "id-3":
            raise ZeroDivisionError
        raise raised

    with caplog.at_level(logging.ERROR, "unpoison"):
        total = consume(app, fails, (b"1", b"2", b"3"), max_attempts=2)
    assert (total.dead, total.retried) == (3, 3)
    told = [each for each in caplog.records if each.event == "hook-failed"]
    assert sorted(each.getMessage().split(":")[0] for each in told) == [
        f"on_failure of 'orders' raised {kind}" for kind in sorted([type(raised).__name__, "ZeroDivisionError"])
    ]
    assert {(each.hook, each.source) for each in told} == {("on_failure", "orders")}
    assert "test_on_failure.py" in told[0].hook_traceback


def test_an_async_one_that_takes_too_long_is_cancelled(consume, caplog, monkeypatch):
    for module in (on_failure, in_process):
        monkeypatch.setattr(module, "HOOK_LIMIT", 0.01)
    app, ended = app_with(), []

    @app.on_failure
    async def hook(message, metadata, error):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(threading.current_thread())

    with caplog.at_level(logging.ERROR, "unpoison"):
        assert consume(app, fails, max_attempts=1).dead == 1
    assert len(ended) == 1
    assert "raised TimeoutError: it took more than 0.01 s" in caplog.text


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ConfigError, match="on_failure must be"):
        app_with().consumer("orders", on_failure="mail")(lambda order: None)

    def generator(message, metadata, error):
        yield

    with pytest.raises(ConfigError, match="on_failure"):
        app_with().on_failure(generator)
