"""A handler whose code never runs is refused when it is registered; where only its result tells, its message is a dead letter."""

import functools
import gc
import itertools
import types
import warnings

import pytest

from unpoison import App, ConfigError, Delivery
from unpoison.app_internals import consumers_of

numbers = itertools.count()


async def ship(order):
    """An ordinary async handler."""


def each(order):
    yield order


async def each_async(order):
    yield order


class Shipper:
    def __init__(self, function):
        self.function = function

    def method(self, order):
        return self.function(order)

    async def async_method(self, order):
        return await self.function(order)

    def generating(self, order):
        yield order

    @staticmethod
    async def static(order):
        """An async function that needs no object."""


class AsyncShipper:
    async def __call__(self, order):
        """Called like a function."""


class GeneratingShipper:
    def __call__(self, order):
        yield order


def registered(handler, **options):
    app = App("memory://registered")
    app.consumer("orders", **options)(handler)
    return consumers_of(app)["orders"].options


@pytest.mark.parametrize(
    "handler",
    [
        each,
        each_async,
        functools.partial(each),
        functools.partial(functools.partial(each_async)),
        Shipper(None).generating,
        GeneratingShipper(),
        staticmethod(each),
    ],
    ids=["function", "async", "partial", "partial-twice", "method", "object", "static"],
)
def test_a_generator_function_is_refused_as_a_handler(handler):
    with pytest.raises(ConfigError, match=r"'orders': handler .* is an? (async )?generator function: .* runs none of its code"):
        registered(handler)


@pytest.mark.parametrize(
    "handler",
    [
        ship,
        functools.partial(ship),
        functools.partial(Shipper(ship).async_method),
        Shipper(ship).async_method,
        AsyncShipper(),
        functools.partial(AsyncShipper()),
        Shipper.static,
        Shipper.__dict__["static"],
    ],
    ids=["function", "partial", "partial-method", "method", "object", "partial-object", "static", "static-object"],
)
def test_whatever_is_async_runs_as_async(handler):
    assert registered(handler).is_async


class AnswersEverything:
    def __getattr__(self, name):
        return self

    def __call__(self, order): ...


def test_an_object_that_has_every_attribute_is_refused_and_not_unwrapped_for_ever():
    with pytest.raises(ConfigError, match="has no signature to read"):
        registered(AnswersEverything())


PLAIN = [lambda order: None, Shipper(print).method, print, functools.partial(print, "x")]


@pytest.mark.parametrize("handler", PLAIN, ids=["lambda", "method", "built-in", "partial"])
def test_whatever_is_not_async_does_not(handler):
    assert not registered(handler).is_async


@functools.wraps(ship)
def wrapper(order):
    return ship(order)


class Awaitable:
    def __await__(self):
        yield


@types.coroutine
def old_coroutine():
    yield


async def forgets_to_await(order):
    return ship(order)


async def makes_a_generator(order):
    return each_async(order)


def dead_letters(handlers, **options):
    """The dead letter of each handler that did not do its message."""
    app = App(f"memory://results-{next(numbers)}")
    for source, handler in handlers.items():
        app.consumer(source, concurrency=1, **options)(handler)
        app.publish(source, {"id": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = app.run(until_empty=True)
        gc.collect()  # a coroutine that was never awaited warns when it is collected
    letters = {source: letter for source in handlers for letter in app.dlq(source).peek()}
    app.close()
    assert {source for source, tally in result.sources.items() if tally.done} == handlers.keys() - letters.keys()
    return letters


def check_unfinished(letters, expected):
    assert letters.keys() == expected.keys()
    for source, words in expected.items():
        letter = letters[source]
        assert (letter.classification, letter.attempts) == ("bug", 1)
        assert letter.error_type == "unpoison.errors.UnfinishedHandler"
        assert words in letter.error
        assert "its work is not done" in letter.error
        assert "File" not in letter.traceback, "where unpoison found out explains nothing"


RETURNS_WORK = {
    "wrapper": (wrapper, "an awaitable of type coroutine"),
    "lambda": (lambda order: ship(dict(order)), "an awaitable of type coroutine"),
    "method": (Shipper(ship).method, "an awaitable of type coroutine"),
    "awaitable": (lambda order: Awaitable(), "an awaitable of type Awaitable"),
    "old-coroutine": (lambda order: old_coroutine(), "a generator"),
    "generator": (lambda order: each(dict(order)), "a generator"),
    "async-generator": (lambda order: each_async(dict(order)), "an async generator"),
}


@pytest.mark.parametrize("isolation", ["thread", "inline"])
def test_a_sync_handler_that_returns_its_work_is_a_bug_and_not_done(isolation):
    letters = dead_letters({source: handler for source, (handler, _) in RETURNS_WORK.items()}, isolation=isolation)
    check_unfinished(letters, {source: words for source, (_, words) in RETURNS_WORK.items()})


def test_an_async_handler_that_returns_its_work_is_a_bug_and_not_done():
    letters = dead_letters({"coroutine": forgets_to_await, "generator": makes_a_generator, "good": ship})
    check_unfinished(letters, {"coroutine": "that was never awaited", "generator": "that was never iterated"})


@pytest.mark.parametrize("isolation", ["thread", "inline"])
def test_any_other_result_is_as_good_as_none(isolation):
    results = [None, 0, False, "sent", {"id": 1}, [1], iter([1]), object()]
    assert dead_letters({f"source-{n}": lambda order, n=n: results[n] for n in range(8)}, isolation=isolation) == {}


def test_a_coroutine_that_resists_being_closed_is_still_one_failure():
    class Stubborn(AsyncShipper):
        def send(self, value): ...

        def throw(self, *arguments): ...

        def __await__(self): ...

        def close(self):
            raise SystemExit

    check_unfinished(dead_letters({"orders": lambda order: Stubborn()}), {"orders": "type Stubborn"})


def test_a_consumer_without_parentheses_is_refused_with_the_right_form():
    app = App("memory://bare")
    with pytest.raises(ConfigError, match=r"@app.consumer on .*ship has no parentheses.*@app.consumer\('orders'\)"):

        @app.consumer
        def ship(order: dict, delivery: Delivery) -> None: ...

    assert consumers_of(app) == {}
