"""On what are promises tried? On a `Lab`: one fresh, empty broker, and its faults."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import Flag, auto
from pathlib import Path
from typing import Any, NoReturn, Self
from unittest.mock import patch

import msgspec

from unpoison.app import App
from unpoison.brokers import broker_for, dead_letters_for
from unpoison.deadletters import DLQManager
from unpoison.model.message import Delivery, Native, Outgoing
from unpoison.port.broker import Broker, Capability, DeadLetters, Depth, Ring
from unpoison.testing.isolation.diary import wait_until

Promise = Callable[..., None]


class Trait(Flag):
    """What a promise asks of its lab beyond an empty broker. A fixture reads it: `traits_of(request.function)`."""

    TAKEOVER = auto()
    """It waits until the broker takes back what a silent consumer held. Let that take a second or two."""

    SILENT = auto()
    """A consumer says nothing for seconds and must keep its messages. Let a takeover take half a minute."""

    ORDERED = auto()
    """It counts on the order of messages."""

    SEVERAL_CONSUMERS = auto()
    """Several consumers share one source at the same time. A broker that shares out parts of a source needs several parts."""

    PREFETCHED = auto()
    """A consumer holds a hundred messages ready. A broker that hands out a few at a time needs several fetches at once."""

    FAULTY_BROKER = auto()
    """The broker refuses dead letters, or its answers get lost: `dead_letters_unwritable`, `losing_answers`."""


def trait(traits: Trait) -> Callable[[Promise], Promise]:
    """Declare what a promise asks of its lab."""

    def declare(promise: Promise) -> Promise:
        promise.traits = traits  # type: ignore[attr-defined]
        return promise

    return declare


def traits_of(promise: Promise) -> Trait:
    return getattr(promise, "traits", Trait(0))


class Lab(ABC):
    """A fresh, empty broker, and the faults that only the author of its adapter knows how to cause.

    A subclass says how; everything else is the same for every broker. `folder` is for what a promise has to write
    down outside of the broker. Used as a context manager it closes what was opened through it.
    """

    modules: tuple[str, ...] = ()
    """The modules of the adapter. The promises about kills kill a process at the lines of these."""

    kill_part: tuple[int, int] = (0, 1)
    """Which of how many parts of those lines: on a slow broker several tests can share them."""

    has_sources: bool = False
    """Whether sources are there before unpoison comes, made by others."""

    readers: tuple[str, ...] = ()
    """The functions, by their full names, that make sense of what the broker handed out: `unreadable` makes them fail."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.capabilities = broker_for(url).capabilities
        self._opened: list[Broker | App | DLQManager] = []

    @abstractmethod
    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """Make this connection lose these messages while it believes to hold them, as if it had vanished."""

    @abstractmethod
    def dead_letters_unwritable(self) -> AbstractContextManager[None]:
        """While this lasts no dead letter can be stored, for a reason that the adapter meets in real life."""

    def unreadable(self, marker: bytes) -> AbstractContextManager[None]:
        """While this lasts the adapter fails to read every message that holds these bytes, wherever it comes from."""
        if not self.readers:
            _skip("nothing is read here: messages stay what they are")
        return failing_on(marker, self.readers)

    def refused_message(self, broker: Broker) -> Outgoing:
        """A message that the broker refuses for what it is from now on, if this connection publishes it: one that is too large,
        or for a source that cannot be. It takes all others that are for "orders"."""
        _skip("this broker takes every message")

    def losing_answers(self, marker: bytes) -> AbstractContextManager[Broker]:
        """A connection that breaks once the broker has stored what holds these bytes: the answer does not arrive."""
        _skip("no answer of this broker can be lost")

    similar_source: str = "orders.eu"
    """The name of another source that begins like "orders" and goes on with what separates parts of a name."""

    shares_by_turns: bool = True
    """Whether of two connections that fetch by turns each gets what it asks for, while there is something."""

    lasting: tuple[str, ...] = ()
    """Of the native properties those that a retry, a dead letter and a replay keep."""

    def send_foreign(self, body: bytes, key: bytes, headers: Sequence[tuple[str, bytes]]) -> Native:
        """Send this to "orders" as another program would, with the broker's own client. Returns what of it the broker can hold,
        and some of the properties that it was given."""
        _skip("other programs do not write here")

    def fill_a_dlq_of_others(self, name: str, bodies: Sequence[bytes]) -> str:
        """Have these in a queue, topic, stream or key that another program has made as its DLQ, by the broker's own client.
        Returns how it is called; that may be more than this name."""
        _skip("other programs keep no dead letters here")

    dlq_name: str = "lost-orders"
    """A name that the DLQ of "orders" may have; empty where it has none."""

    def shift_clock(self, seconds: float) -> None:
        """Move the clock that the broker goes by, for all connections made by `connect`."""
        _skip("the clock of this broker cannot be moved")

    @property
    def administrators_url(self) -> str:
        """The URL with what is needed to ask which sources there are, where that is more than consumers need."""
        return self.url

    def connect(self) -> Broker:
        """A connection, not yet opened."""
        return broker_for(self.url)

    def broker(self, *sources: str, ring: Ring | None = None) -> Broker:
        """A connection of its own, opened."""
        broker = self.connect()
        broker.open(sources, ring=ring)
        self._opened.append(broker)
        return broker

    def app(self, **settings: Any) -> App:
        app = App(self.url, **settings)
        self._opened.append(app)
        return app

    def dlq(self, source: str, page: int | None = None) -> DLQManager:
        """The dead letters of a source; `page` is how many are sent or removed at once, for promises about several pages."""
        manager = self.app().dlq(source)
        manager.page = page or manager.page
        return manager

    def letters(self, source: str) -> DeadLetters:
        """The broker's own DLQ of a source, on a connection of its own."""
        letters = dead_letters_for(self.url, source)
        self._opened.append(letters.broker)
        return letters

    @property
    def counts_exactly(self) -> bool:
        return Capability.EXACT_DEPTH in self.capabilities

    @property
    def is_atomic(self) -> bool:
        return Capability.ATOMIC in self.capabilities

    def expect_depth(self, broker: Broker, source: str, expected: Depth) -> None:
        """What the broker counts; one that cannot count exactly what others hold says, in the end, whether there is something."""
        if self.counts_exactly:
            assert broker.depth(source) == expected
            return

        def is_so() -> bool:
            found = broker.depth(source)
            return (found.empty, found.dead) == (expected.empty, expected.dead)

        wait_until(is_so, lambda: f"{broker.depth(source)} is not {expected}")

    def needs(self, capability: Capability) -> None:
        """Skip the promise if the broker does not claim this."""
        missing = capability & ~self.capabilities
        if missing:
            _skip(f"the broker does not claim {missing.name}")

    def close(self) -> None:
        """Close what was opened through it. It can be used again."""
        while self._opened:
            self._opened.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _skip(why: str) -> NoReturn:
    import pytest  # noqa: PLC0415 - processes that only play a part in a promise start faster without it

    pytest.skip(why)


class ReadingFault(Exception):
    """Stands for a fault of our own in the code that reads messages."""


@contextmanager
def failing_on(marker: bytes, functions: Sequence[str]) -> Iterator[None]:
    """While this lasts these functions raise when an argument of theirs holds these bytes."""
    with ExitStack() as patches:
        for name in functions:
            owner, attribute = _owner(name)
            patches.enter_context(patch.object(owner, attribute, _failing(getattr(owner, attribute), marker)))
        yield


def _owner(name: str) -> tuple[Any, str]:
    """The module or class that holds what this name says, and under which attribute."""
    path, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(path), attribute
    except ModuleNotFoundError:
        owner, inner = _owner(path)
        return getattr(owner, inner), attribute


def _failing(function: Callable[..., Any], marker: bytes) -> Callable[..., Any]:
    def failing(*arguments: Any) -> Any:
        if any(_holds(each, marker) for each in arguments):
            raise ReadingFault("this message cannot be read")
        return function(*arguments)

    return failing


def _holds(value: Any, marker: bytes) -> bool:
    """Whether a native message, or a batch of them, holds these bytes."""
    if isinstance(value, bytes):
        return marker in value
    if isinstance(value, str):
        return marker.decode() in value
    if isinstance(value, Mapping):
        return any(_holds(each, marker) for each in value.values())
    if isinstance(value, list | tuple):
        return any(_holds(each, marker) for each in value)
    if isinstance(value, msgspec.Struct):
        return _holds(msgspec.structs.astuple(value), marker)
    content = getattr(value, "value", None)  # a record of Kafka
    return callable(content) and _holds(content(), marker)
