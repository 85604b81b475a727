"""Keep one connection to RabbitMQ, and use it from several threads.

One thread owns a connection and no other touches it: others hand it work and wait. A connection that breaks is not repaired:
a new one is opened when it is needed, and the server takes back everything that was held on the old one.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from contextlib import suppress
from functools import partial
from typing import Any

from pika import exceptions
from pika.channel import Channel as PikaChannel

from unpoison.brokers.rabbitmq.errors import Refused, Unanswered, closing_reason, connect_error
from unpoison.brokers.rabbitmq.url import Address
from unpoison.brokers.rabbitmq.wire import Tap, Wire
from unpoison.errors import BrokerUnavailable

ANSWER_TIMEOUT = 30.0
"""Seconds within which the server answers any question."""

LOOK_UP = 0.02
"""Seconds between two looks whether an answer can still come."""

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it logs as errors what we say in one sentence

Unless = Callable[[], bool]
Question = Callable[[PikaChannel, Callable[[Any], None]], object]


class Connection:
    """One connection, opened when this returns. `on_lost` is called in its thread when it breaks."""

    def __init__(self, address: Address, name: str, on_lost: Callable[[], None] = lambda: None) -> None:
        self._address, self._on_lost = address, on_lost
        self._opened: Future[None] = Future()
        self._asked: set[Future[Any]] = set()
        self._channels: set[Channel] = set()
        self.lost: str | None = None
        self._is_ending = False
        self.blocked: str | None = None
        parameters = address.parameters
        parameters.client_properties = {"connection_name": f"unpoison {name}"}
        self.wire = Wire(parameters, self._on_open, self._on_open_error, self._on_close)
        self._thread = threading.Thread(target=self._run, name=f"unpoison-rabbitmq-{name}", daemon=True)
        self._thread.start()
        self._opened.result()
        self.version = _version(self.wire.server_properties)
        self.frame_max = int(self.wire.params.frame_max) if not self.wire._body_max_length else self.wire._body_max_length + 8  # noqa: SLF001

    @property
    def is_open(self) -> bool:
        return self.lost is None and not self._is_ending

    def descriptor(self) -> int | None:
        """Of its socket: while a process has a copy of it, the server sees no end of the connection."""
        try:
            number = int(self._socket().fileno())
        except (AttributeError, OSError):
            return None
        return number if self.is_open and number >= 0 else None

    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def post(self, work: Callable[[], None]) -> None:
        """Have the connection's thread do this soon. Nothing happens if the connection is gone by then."""
        with suppress(RuntimeError, OSError, ValueError, AttributeError):  # the loop has ended
            self.wire.ioloop.add_callback_threadsafe(work)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        self.post(lambda: self.wire.ioloop.call_later(seconds, work))

    def ask(self, question: "Callable[[Future[Any]], object]", what: str, unless: Unless = lambda: False) -> Any:
        """Ask in the connection's thread, and wait until the answer is set, `unless` nobody can set it."""
        answer: Future[Any] = Future()
        self._asked.add(answer)

        def begin() -> None:
            try:
                question(answer)
            except Exception as error:  # the client raises many kinds; each means that the question was not put
                _fail(answer, error)

        try:
            if self.lost is not None:
                raise self.unavailable()
            self.post(begin)
            return _awaited(answer, unless)
        except WaitedTooLong:
            raise BrokerUnavailable(
                f"RabbitMQ at {self._address.shown} did not answer within {ANSWER_TIMEOUT:g} s ({what})."
            ) from None
        except (exceptions.AMQPError, OSError, AttributeError) as error:
            raise self.unavailable(str(error)) from None
        finally:
            self._asked.discard(answer)

    def channel(self, tap: Tap | None = None, on_closed: Callable[[], None] = lambda: None) -> "Channel":
        """A new channel. `on_closed` is called in the connection's thread when it ends for whatever reason."""
        channel = Channel(self, tap, on_closed)
        self._channels.add(channel)
        if self.lost is not None:
            channel.end(self.lost)
        return channel

    def forget(self, channel: "Channel") -> None:
        """It has ended."""
        self._channels.discard(channel)

    def close(self) -> None:
        """End it, and return once it has ended."""
        self.hang_up()
        if not self.is_own_thread():
            self._thread.join(5.0)

    def hang_up(self) -> None:
        """Have it end soon. A caller that needs one from now on opens another."""
        self._is_ending = True

        def end() -> None:
            if self.wire.is_open:
                self.wire.pause(False)
                self.wire.close()
            elif not (self.wire.is_closing or self.wire.is_closed):
                self.wire.ioloop.stop()

        self.post(end)

    def unavailable(self, why: str = "") -> BrokerUnavailable:
        reason = self.lost or why or "the connection is gone"
        return BrokerUnavailable(f"RabbitMQ at {self._address.shown} is not there: {reason}.")

    def _run(self) -> None:
        try:
            self.wire.ioloop.start()
        except Exception as error:  # the thread must not end while others wait for it
            self._lose(f"{type(error).__name__}: {error}")
        finally:
            self._lose("the connection was closed")
            self._throw_away()

    def _throw_away(self) -> None:
        """The client leaves its socket open if its loop ends before the transport has noticed that the server is gone."""
        with suppress(Exception):
            self._socket().shutdown(socket.SHUT_RDWR)  # also if workers have copies of it
        with suppress(Exception):
            self._socket().close()
        with suppress(Exception):
            self.wire.ioloop.close()

    def _socket(self) -> Any:
        return self.wire._transport._sock  # noqa: SLF001

    def _on_open(self, _: Any) -> None:
        self.wire.add_on_connection_blocked_callback(lambda _, frame: self._set_blocked(frame.method.reason))
        self.wire.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(None))
        _set(self._opened, None)

    def _set_blocked(self, reason: str | None) -> None:
        self.blocked = reason

    def _on_open_error(self, _: Any, error: BaseException) -> None:
        _fail(self._opened, connect_error(error, self._address))
        self._lose(str(error))
        self.wire.ioloop.stop()

    def _on_close(self, _: Any, error: BaseException) -> None:
        self._lose(closing_reason(error))
        self.wire.ioloop.stop()

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = why
        _fail(self._opened, BrokerUnavailable(f"RabbitMQ at {self._address.shown} is not there: {why}."))
        for answer in list(self._asked):
            _fail(answer, self.unavailable())
        for channel in list(self._channels):
            channel.end(why)
        self._on_lost()


class Channel:
    """One channel, opened when this returns."""

    def __init__(self, connection: Connection, tap: Tap | None, on_closed: Callable[[], None]) -> None:
        self.connection, self._on_closed = connection, on_closed
        self.unless: Unless = lambda: False
        """Whether nobody reads answers on this channel for now."""
        self.closed: Refused | None = None
        self._asked: set[Future[Any]] = set()
        self._pika: PikaChannel = connection.ask(partial(self._open, tap), "opening a channel")
        self.number: int = self._pika.channel_number

    @property
    def is_open(self) -> bool:
        return self.closed is None and self.connection.is_open

    def ask(self, question: Question, what: str) -> Any:
        """Ask on this channel. Raises Refused if the server closes it over that, Unanswered if nobody reads the answer."""

        def begin(answer: "Future[Any]") -> None:
            self._asked.add(answer)
            answer.add_done_callback(self._asked.discard)
            if self.closed is not None:
                _fail(answer, self.closed)
            else:
                question(self._pika, partial(_set, answer))

        return self.connection.ask(begin, what, self.unless)

    def look_at(self, queue: str) -> Any:
        """How many messages are ready in a queue, and how many consumers it has. Raises Refused if there is no such queue."""
        what = f"looking at queue {queue}"
        return self.ask(lambda pika, done: pika.queue_declare(queue, passive=True, callback=done), what).method

    def ready(self, queue: str) -> int:
        return int(self.look_at(queue).message_count)

    def set_credit(self, credit: int) -> None:
        """For consumers from now on."""
        self.ask(lambda pika, done: pika.basic_qos(prefetch_count=credit, callback=done), "setting the credit")

    def consume(self, queue: str, **options: Any) -> None:
        """Have a consumer on this channel; its messages go to the tap."""
        self.ask(lambda pika, done: pika.basic_consume(queue, _never, callback=done, **options), f"consuming queue {queue}")

    def cancel(self, consumer: str) -> None:
        self.ask(lambda pika, done: pika.basic_cancel(consumer, callback=done), "cancelling a consumer")

    def send(self, frames: bytes) -> None:
        """Write frames of this channel; at once if this is the connection's own thread, so that nothing overtakes them."""

        def write() -> None:
            if self.closed is None and self.connection.wire.is_open:
                self.connection.wire.emit(frames)

        if self.connection.is_own_thread():
            write()
        else:
            self.connection.post(write)

    def on_cancel(self, call: Callable[[], None]) -> None:
        """Have this called when the server cancels a consumer of this channel."""
        watch = partial(self._pika.add_on_cancel_callback, lambda _: call())
        self.connection.ask(lambda answer: _set(answer, watch()), "watching a channel")

    def close(self) -> None:
        """End it and return once the server has put back what was held on it."""

        def begin(answer: "Future[Any]") -> None:
            if self._pika.is_closed:
                _set(answer, None)
                return
            self._pika.add_on_close_callback(lambda *_: _set(answer, None))
            if self._pika.is_open:
                self._pika.close()

        with suppress(BrokerUnavailable):  # then it is closed in any case
            self.connection.ask(begin, "closing a channel")

    def _open(self, tap: Tap | None, answer: "Future[Any]") -> None:
        channel = self.connection.wire.channel(on_open_callback=partial(_set, answer))
        channel.add_on_close_callback(self._ended)
        if tap is not None:
            self.connection.wire.tap(channel.channel_number, tap)

    def _ended(self, channel: PikaChannel, reason: BaseException) -> None:
        self.connection.wire.tap(channel.channel_number, None)
        self.end(str(getattr(reason, "reply_text", reason)), getattr(reason, "reply_code", 0))

    def end(self, why: str, code: int = 0) -> None:
        """It has ended: fail all that waits for an answer on it. A second call does nothing."""
        if self.closed is not None:
            return
        self.closed = Refused(code, why)
        self.connection.forget(self)
        for answer in list(self._asked):
            _fail(answer, self.closed)
        self._on_closed()


def _awaited(answer: "Future[Any]", unless: Unless) -> Any:
    ends = time.monotonic() + ANSWER_TIMEOUT
    while True:
        try:
            return answer.result(min(LOOK_UP, max(0.0, ends - time.monotonic())))
        except WaitedTooLong:
            if unless():
                raise Unanswered from None
            if time.monotonic() >= ends:
                raise


def _never(*_: object) -> None:
    raise AssertionError("messages go to the tap of the channel, not through the client")


def _set(answer: "Future[Any]", value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: "Future[Any]", error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)


def _version(properties: Any) -> tuple[int, int]:
    text = str((properties or {}).get("version", "0.0"))
    numbers = [int(part) for part in text.split(".")[:2] if part.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
