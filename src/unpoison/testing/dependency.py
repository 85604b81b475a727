"""What do handlers depend on that can fail? A real HTTP server, which does what a promise tells it to.

It works, answers 503, refuses connections, hangs, or throttles, and it notes every request with its time. `call` is the side of
the handler: it raises what a common client raises.
"""

import math
import socket
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

import requests

WORKS = 200
LOOK_EVERY = 0.02


class Call(NamedTuple):
    """One request. `at` is monotonic time, which all processes of a machine share."""

    at: float
    message: str
    status: int
    """What was answered; 0 if nothing was."""


class Dependency:
    """An HTTP server on a free port of this machine, in threads of this process. A process that was forked from this one does not
    serve: while nothing listens here, connections are refused everywhere."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._is_failing = self._is_hanging = self._is_refusing = False
        self._let_go = threading.Event()
        self._throttles_for = 0.0
        self.free_at = 0.0
        """When throttling ends."""
        self._throttled: frozenset[str] | None = None
        self._server = _Server(("127.0.0.1", _free_port()), _answerer(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(LOOK_EVERY,), name="dependency", daemon=True)

    @property
    def address(self) -> str:
        """Host and port: by this it is named as the cause of an outage."""
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    # What it is told to do

    def work(self) -> float:
        """From now on. Returns the time."""
        self._is_failing = self._is_hanging = False
        self._let_go.set()
        if self._is_refusing:
            self._is_refusing = False
            self._server.socket.listen(128)
        return time.monotonic()

    def fail(self) -> float:
        """Answer 503."""
        self._is_failing = True
        return time.monotonic()

    def throttle(self, seconds: float, only: Iterable[str] | None = None) -> None:
        """Answer 429 from the next request on for so long, to all or for these messages only, and say when to come again."""
        self._throttled = None if only is None else frozenset(only)
        self._throttles_for, self.free_at = seconds, math.inf

    def refuse(self) -> float:
        """Refuse connections. The port stays taken, so that nobody else can answer there."""
        self._is_refusing = True
        self._server.socket.shutdown(socket.SHUT_RDWR)
        return time.monotonic()

    def hang(self) -> float:
        """Take requests and answer none."""
        self._let_go.clear()
        self._is_hanging = True
        return time.monotonic()

    # What it has seen

    def calls(self) -> list[Call]:
        return list(self._calls)

    def answer(self, message: str) -> tuple[int, str]:
        """For a request that has come in: a status, 0 for none, and what Retry-After says."""
        at = time.monotonic()
        is_meant = self._throttled is None or message in self._throttled
        if is_meant and self.free_at == math.inf:
            self.free_at = at + self._throttles_for
        left = self.free_at - at
        is_throttled = is_meant and left > 0
        status = 0 if self._is_hanging else 503 if self._is_failing else 429 if is_throttled else WORKS
        self._calls.append(Call(at, message, status))
        if status == 0:
            self._let_go.wait()
        return status, str(math.ceil(left)) if is_throttled else ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._let_go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _free_port() -> int:
    """To be bound by its number: a socket that was given some free port loses it when it stops to listen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def get_request(self) -> tuple[socket.socket, object]:
        try:
            return super().get_request()
        except OSError:  # nothing listens at present, and the server's loop does not know that
            time.sleep(LOOK_EVERY)
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        """A consumer that was killed in the middle of a request is no news."""


def _answerer(dependency: Dependency) -> type[BaseHTTPRequestHandler]:
    class Answerer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, retry_after = dependency.answer(self.path.rpartition("/")[2])
            if status == 0:
                return
            self.send_response(status)
            if retry_after:
                self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the library
            """The promise asks for what came; nobody reads this."""

    return Answerer


def call(url: str, message: str, timeout: float | None = None) -> None:
    """Call the dependency for this message, as a handler does. Raises what `requests` raises, unless it was answered well."""
    with requests.post(f"{url}/{message}", data=b"{}", timeout=timeout) as response:
        response.raise_for_status()
