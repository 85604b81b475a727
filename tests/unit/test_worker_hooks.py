"""What a user hooks in runs, async or not: around the handlers of a process, and after each verdict."""

import asyncio
import itertools
import sys
import threading

import pytest

from unpoison import App, Backoff, ConfigError, PoisonPillHandler
from unpoison.worker.call import Awaiting

numbers = itertools.count()


def app_with(source="orders", **options):
    return App(f"memory://hooks-{next(numbers)}", **options)


def test_async_hooks_run_on_the_loop_of_the_async_handlers():
    app, seen = app_with(), []

    @app.on_worker_start
    async def start():
        await asyncio.sleep(0)
        seen.append(("start", asyncio.get_running_loop()))

    @app.on_worker_stop
    async def stop():
        await asyncio.sleep(0)
        seen.append(("stop", asyncio.get_running_loop()))

    for source in ("orders", "emails"):

        @app.consumer(source)
        async def handle(body: bytes):
            seen.append(("handle", asyncio.get_running_loop()))

        app.publish(source, b"1")
    app.run(until_empty=True)
    assert [what for what, _ in seen] == ["start", "handle", "handle", "stop"]
    assert len({loop for _, loop in seen}) == 1


@pytest.mark.parametrize("isolation", ["thread", "inline"])
def test_hooks_of_sync_handlers_run_once_and_share_a_loop_of_their_own(isolation):
    app, seen, loops = app_with(), [], []

    @app.on_worker_start
    def plain():
        seen.append("plain start")

    @app.on_worker_start
    async def start():
        loops.append(asyncio.get_running_loop())
        seen.append("start")

    @app.on_worker_stop
    async def stop():
        loops.append(asyncio.get_running_loop())
        seen.append("stop")

    for source in ("orders", "emails"):
        app.consumer(source, isolation=isolation)(lambda body: seen.append("handle"))
        app.publish(source, b"1")
    app.run(until_empty=True)
    assert seen == ["plain start", "start", "handle", "handle", "stop"]
    assert loops[0] is loops[1]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_start_hook_that_raises_starts_no_message_and_is_one_clear_error(is_async):
    app, seen = app_with(), []

    @app.on_worker_start
    async def start():
        raise ConnectionError("the pool cannot be opened")

    @app.on_worker_stop
    def stop():
        seen.append("stop")

    async def handle(body: bytes):
        seen.append("handle")

    app.consumer("orders")(handle if is_async else lambda body: seen.append("handle"))
    app.publish("orders", b"1")
    with pytest.raises(ConfigError, match=r"on_worker_start raised ConnectionError: the pool cannot be opened\. No message"):
        app.run(until_empty=True)
    assert seen == []
    assert app._broker().depth("orders").ready == 1


def test_a_stop_hook_that_raises_is_said_and_the_others_run(caplog):
    app, seen = app_with(), []

    @app.on_worker_stop
    async def broken():
        raise RuntimeError("it is closed")

    app.on_worker_stop(lambda: seen.append("stop"))
    app.consumer("orders")(lambda body: None)
    app.publish("orders", b"1")
    app.run(until_empty=True)
    assert seen == ["stop"]
    assert "on_worker_stop raised RuntimeError" in caplog.text


@pytest.mark.parametrize("is_async", [True, False])
def test_an_async_start_hook_that_hangs_is_given_up_after_start_timeout(is_async):
    app, seen, cancelled = app_with(start_timeout=0.05), [], threading.Event()

    @app.on_worker_start
    async def start():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def handle(body: bytes):
        seen.append("handle")

    app.consumer("orders")(handle if is_async else lambda body: seen.append("handle"))
    app.publish("orders", b"1")
    with pytest.raises(ConfigError, match=r"on_worker_start raised TimeoutError: it took more than 0\.05 s \(start_timeout\)"):
        app.run(until_empty=True)
    assert seen == []
    assert cancelled.wait(10)


def test_a_timeout_of_the_hooks_own_is_told_as_its_own():
    app = app_with()

    @app.on_worker_start
    async def start():
        raise TimeoutError("the database is slow")

    app.consumer("orders")(lambda body: None)
    with pytest.raises(ConfigError, match="on_worker_start raised TimeoutError: the database is slow"):
        app.run(until_empty=True)


def test_a_start_hook_that_asks_the_process_to_end_starts_no_source():
    app, seen = app_with(), []
    app.on_worker_start(lambda: sys.exit(3))
    for source in ("orders", "emails"):
        app.consumer(source)(lambda body: seen.append("handle"))
        app.publish(source, b"1")
    with pytest.raises(ConfigError, match="on_worker_start raised SystemExit: 3"):
        app.run(until_empty=True)
    assert seen == []


def test_a_generator_function_is_refused_as_a_hook():
    app = app_with()

    def start():
        yield

    async def stop():
        yield

    with pytest.raises(ConfigError, match=r"on_worker_start .*start is a generator function"):
        app.on_worker_start(start)
    with pytest.raises(ConfigError, match=r"on_worker_stop .*stop is an async generator function"):
        app.on_worker_stop(stop)


def test_async_hooks_for_verdicts_are_awaited_and_get_the_delay_in_seconds():
    app, seen = app_with(), []

    async def on_retry(message, metadata, delay):
        await asyncio.sleep(0)
        seen.append(("retry", delay))

    async def on_dlq(message, metadata, exc):
        await asyncio.sleep(0)
        seen.append(("dlq", str(exc)))

    handler = PoisonPillHandler(max_attempts=2, backoff=Backoff.fixed(0.01), on_retry=on_retry, on_dlq=on_dlq)

    @app.consumer("orders", handler=handler)
    def fail(body: bytes):
        raise ConnectionError("away")

    app.publish("orders", b"1")
    app.run(until_empty=True)
    assert seen == [("retry", 0.01), ("dlq", "away")]
    assert type(seen[0][1]) is float


def test_an_async_classifier_is_refused():
    async def classify(exc):
        return "permanent"

    with pytest.raises(ConfigError, match="classify is async, but its answer is never awaited"):
        PoisonPillHandler(error_classifier=classify)


def test_a_loop_that_was_closed_refuses_a_coroutine_without_a_warning():
    awaiting = Awaiting()
    awaiting.loop().close()

    async def stop(): ...

    with pytest.raises(RuntimeError, match="closed"):
        awaiting.call(stop)


def test_what_a_hook_raises_is_passed_on():
    awaiting = Awaiting()

    async def start():
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        awaiting.call(start)
    awaiting.close()


def test_hooks_run_before_any_thread_takes_a_message():
    app, opened = app_with(), threading.Event()
    app.on_worker_start(opened.set)
    seen = []
    for source in ("a", "b", "c"):
        app.consumer(source)(lambda body: seen.append(opened.is_set()))
        app.publish(source, b"1")
    app.run(until_empty=True)
    assert seen == [True] * 3
