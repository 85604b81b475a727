"""One connection, used from any thread. The asynchronous client runs on one event loop in one thread of this process.

A lost connection is never revived: the next call that needs one makes a new one, to any server of the cluster that is known by
then. Deliveries outlive it: the server goes by the reply subject, not by the connection.
"""

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from nats import errors
from nats.aio.client import Client

from unpoison.brokers.nats import wire
from unpoison.brokers.nats.url import Address
from unpoison.brokers.nats.wire import Sink
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port.broker_url import without_secrets

T = TypeVar("T")


class LoopThread:
    """An event loop that runs for as long as the process does."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="unpoison-nats", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Have this done there; returns what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)


_lock = threading.Lock()
_threads: list[LoopThread] = []


def loop_thread() -> LoopThread:
    """The one of this process. A forked child inherits no thread and gets its own."""
    with _lock:
        if not _threads or _threads[-1].pid != os.getpid():
            _threads.append(LoopThread())
        return _threads[-1]


CONNECT_TIMEOUT = 5
ANSWER_TIMEOUT = 10.0
PING_INTERVAL = 20
NO_RESPONDERS = 503
NO_MESSAGE = 10037


class Refused(BrokerUnavailable):
    """JetStream says no. `code` is its error code."""

    def __init__(self, what: str, code: int, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(f"NATS refuses {what}: {text} (code {code}).")


class Connection:
    """One connection."""

    def __init__(self, address: Address, on_lost: Callable[[], None] = lambda: None, known: Sequence[str] = ()) -> None:
        self.address, self._on_lost = address, on_lost
        self._thread = loop_thread()
        self._client = Client()
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, Future[tuple[bytes, bytes]]] = {}
        self._lock = threading.Lock()
        self._when_lost: list[Callable[[], None]] = []
        self._when_denied: list[Callable[[str], None]] = []
        self._seen: Exception | None = None
        self.lost: str | None = None
        self._tap = wire.install(self._client)
        self._is_made = False
        self._inbox = b"%s.%s" % (str(address.options.get("inbox_prefix", "_INBOX")).encode(), os.urandom(11).hex().encode())
        self._connect([*dict.fromkeys([*address.servers, *known])])
        self.subscribe(self._inbox + b".*", self._answered)

    @property
    def is_open(self) -> bool:
        return self.lost is None and self._thread.pid == os.getpid()

    @property
    def version(self) -> tuple[int, int]:
        known = self._client.connected_server_version
        return known.major, known.minor

    @property
    def max_payload(self) -> int:
        return int(self._client.max_payload)

    @property
    def known(self) -> list[str]:
        """Servers of the cluster that it has told us of."""
        return [server.geturl() for server in self._client.discovered_servers]

    def _connect(self, servers: Sequence[str]) -> None:
        failed: Exception | None = None
        for server in servers:
            try:
                return self._thread.run(self._connected(server), 2 * CONNECT_TIMEOUT)
            except (errors.AuthorizationError, errors.InvalidUserCredentialsError) as error:
                raise ConfigError(self._refused(error)) from None
            except (OSError, errors.Error, TimeoutError) as error:
                if "authorization" in str(error).lower():
                    raise ConfigError(self._refused(error)) from None
                failed = self._seen or error  # the client's own error does not say why
            except (ImportError, ValueError, TypeError) as error:  # about nkeys_seed and user_credentials
                raise ConfigError(
                    f"NATS at {self.address.shown}: the client cannot use the credentials in the URL ({self._clean(error)}). "
                    f"nkeys_seed and user_credentials are names of files, and need: pip install nkeys"
                ) from None
        raise BrokerUnavailable(f"NATS at {self.address.shown} does not answer: {self._clean(failed)}.")

    def _refused(self, error: Exception) -> str:
        said = self._clean(error)
        return f"NATS at {self.address.shown} refuses the login: {said}. Check name and password, or the credentials in the URL."

    def _clean(self, error: BaseException | None) -> str:
        return without_secrets(str(error or "no server is named"), self.address.url)

    async def _connected(self, server: str) -> None:
        self._client = Client()
        self._tap = wire.install(self._client)
        try:
            await self._client.connect(
                servers=[server],
                name="unpoison",
                allow_reconnect=False,
                connect_timeout=CONNECT_TIMEOUT,
                max_reconnect_attempts=1,
                ping_interval=PING_INTERVAL,
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                **self.address.options,
            )
        except BaseException:
            with suppress(Exception):  # half a connection may be there, and the client leaves it open
                await self._client.close()
            raise
        self._is_made = True

    async def _on_error(self, error: Exception) -> None:
        self._seen = error
        if "permissions violation" in str(error).lower():
            why = f"NATS does not permit it: {error}. See docs/nats.md for the permissions that unpoison needs."
            self._fail(ConfigError(why))
            for tell in self._when_denied:
                tell(why)

    async def _on_closed(self) -> None:
        if not self._is_made:
            return
        self.lost = str(self._client.last_error or "the connection was closed")
        self._fail(BrokerUnavailable(f"The connection to NATS at {self.address.shown} broke: {self.lost}."))
        for tell in [*self._when_lost, self._on_lost]:
            tell()

    def _fail(self, error: Exception) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(error)

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Called in the loop's thread when the connection ends."""
        self._when_lost.append(tell)

    def when_denied(self, tell: Callable[[str], None]) -> None:
        """Called in the loop's thread when the server does not permit something: it says so once, to nobody in particular."""
        self._when_denied.append(tell)

    def subscribe(self, subject: bytes, sink: Sink) -> bytes:
        """Messages on this subject go to the sink from now on. Returns the number of the subscription."""
        number = b"%d" % next(self._numbers)
        self._tap.sinks[number] = sink
        self.send(b"SUB %s %s\r\n" % (subject, number))
        return number

    def unsubscribe(self, number: bytes) -> None:
        """Get no more. What is on its way still goes to the sink, until it is forgotten."""
        self.send(b"UNSUB %s\r\n" % number)

    def forget(self, number: bytes) -> None:
        self._tap.sinks.pop(number, None)

    def new_inbox(self) -> bytes:
        return b"%s-%d" % (self._inbox, next(self._numbers))

    def send(self, data: bytes) -> None:
        """Write this. Whether it arrives, an answer tells."""
        if not self.is_open:
            raise BrokerUnavailable(f"The connection to NATS at {self.address.shown} broke: {self.lost}.")
        with suppress(RuntimeError):  # the loop ends with the process
            self._thread.loop.call_soon_threadsafe(wire.write, self._client, data)

    def answer(self, reply: bytes, body: bytes) -> None:
        """Answer a client that asks, if it wants to hear."""
        if reply and self.is_open:
            self.send(wire.publication(reply, b"", b"", body))

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call this in the loop's thread after so long."""
        self._thread.loop.call_soon_threadsafe(self._thread.loop.call_later, seconds, call)

    def expect(self) -> tuple[bytes, Future[tuple[bytes, bytes]]]:
        """A reply subject of its own, and what will hold the header block and body of the answer."""
        name, future = b"%d" % next(self._numbers), Future[tuple[bytes, bytes]]()
        with self._lock:
            self._waiting[name] = future
        return b"%s.%s" % (self._inbox, name), future

    def _answered(self, subject: bytes, reply: bytes, block: bytes, body: bytes) -> None:
        with self._lock:
            future = self._waiting.pop(subject.rpartition(b".")[2], None)
        if future is not None:
            future.set_result((block, body))

    def wait(self, future: Future[tuple[bytes, bytes]], what: str, timeout: float = ANSWER_TIMEOUT) -> tuple[bytes, bytes]:
        try:
            return future.result(timeout)
        except TimeoutError:
            raise BrokerUnavailable(f"NATS at {self.address.shown} did not answer within {timeout:g} s ({what}).") from None

    def request(self, subject: bytes, body: bytes, what: str) -> tuple[bytes, bytes]:
        reply, future = self.expect()
        self.send(wire.publication(subject, reply, b"", body))
        return self.wait(future, what)

    def ask(self, endpoint: str, question: Any = None, what: str = "") -> Any:
        """One question to JetStream; returns the decoded answer. Raises Refused if it says no."""
        return self.ask_all([(endpoint, question)], what or endpoint)[0]

    def ask_all(self, questions: Sequence[tuple[str, Any]], what: str) -> list[Any]:
        """Several questions at once. Raises the first refusal, if there is one."""
        answers = self.ask_each(questions, what)
        for answer in answers:
            if isinstance(answer, Refused):
                raise answer
        return answers

    def ask_each(self, questions: Sequence[tuple[str, Any]], what: str) -> list[Any]:
        """Several questions at once; a refusal stands in the place of its answer."""
        waiting = []
        written: list[bytes] = []
        for endpoint, question in questions:
            reply, future = self.expect()
            body = b"" if question is None else msgspec.json.encode(question)
            written.append(wire.publication(f"{self.address.api}.{endpoint}".encode(), reply, b"", body))
            waiting.append(future)
        self.send(b"".join(written))
        answers: list[Any] = []
        for future in waiting:
            try:
                answers.append(self._decoded(*self.wait(future, what), what))
            except Refused as refused:
                answers.append(refused)
        return answers

    def _decoded(self, block: bytes, body: bytes, what: str) -> Any:
        if wire.status(block) == NO_RESPONDERS:
            raise ConfigError(
                f"NATS at {self.address.shown} does not answer for JetStream ({what}): it is switched off, or this account has "
                f"none. Start the server with -js, or enable it for the account."
            )
        answer = msgspec.json.decode(body)
        if "error" in answer:
            error = answer["error"]
            raise Refused(what, error.get("err_code", error.get("code", 0)), error.get("description", "no reason given"))
        return answer

    def flush(self) -> None:
        """Return once the server has read everything that was sent."""
        try:
            self._thread.run(self._client.flush(int(ANSWER_TIMEOUT)), 2 * ANSWER_TIMEOUT)
        except (errors.Error, OSError, TimeoutError, CancelledError, asyncio.CancelledError) as error:
            said = self._clean(error) or "no answer came"
            raise BrokerUnavailable(f"NATS at {self.address.shown} did not answer (flush): {said}.") from None

    def close(self) -> None:
        if not self.is_open:
            return
        with suppress(errors.Error, OSError, TimeoutError, asyncio.CancelledError):
            self._thread.run(self._client.close(), ANSWER_TIMEOUT)
        self.lost = self.lost or "closed"
