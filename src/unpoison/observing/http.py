"""Answers a few paths over HTTP, and can be neither blocked nor exhausted by whoever connects.

All connections are served by one thread that never waits for any of them, so a client that sends or reads slowly costs a
descriptor for some seconds and holds up nobody. A request has no body and is small, and each connection answers one. A general
server does more than that, and most of what it does more can be attacked.
"""

import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

from unpoison.errors import ConfigError

log = logging.getLogger("unpoison")

MOST_CONNECTIONS = 64
"""With one more, the oldest is closed: what has been open for longest is the least likely to be a real question."""

LARGEST_REQUEST = 8_192

LIMIT = 10.0
"""Seconds for a whole connection."""


class Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


Route = Callable[[str], Answer]
"""Gets the Accept header; empty if there was none."""


class Connection:
    """One client. It is read until its request is complete, then written to, then read until it closes: closing first could take
    away the answer to a request that had more to say."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self.sock, self.until = sock, until
        self.received = bytearray()
        self.to_send: memoryview | None = None
        self.is_answered = False


class HttpServer:
    """Listens from the moment it is made; answers once it is started."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self._routes = routes
        self._failing: set[str] = set()
        self._connections: deque[Connection] = deque()
        self._listener = _listen(host, port)
        self.host, self.port = self._listener.getsockname()[:2]
        self._ended, self._end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="unpoison-http", daemon=True)

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._end.close()
        if self._thread.is_alive():
            self._thread.join()
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        self._ended.close()

    def _serve(self) -> None:
        while True:
            timeout = None if not self._connections else max(0.0, self._connections[0].until - time.monotonic())
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._ended:
                    return
                if key.data is None:
                    self._accept()
                else:
                    self._go_on(key.data)
            while self._connections and self._connections[0].until <= time.monotonic():
                self._drop(self._connections[0])

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it is gone already
            return
        except OSError:  # no descriptor is left in this process, or in the machine
            time.sleep(0.1)
            return
        sock.setblocking(False)
        connection = Connection(sock, time.monotonic() + LIMIT)
        self._connections.append(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        if len(self._connections) > MOST_CONNECTIONS:
            self._drop(self._connections[0])

    def _drop(self, connection: Connection) -> None:
        with suppress(ValueError):  # dropped before, in the same round
            self._connections.remove(connection)
            self._selector.unregister(connection.sock)
            connection.sock.close()

    def _go_on(self, connection: Connection) -> None:
        if connection not in self._connections:  # dropped in this round
            return
        try:
            is_over = not (self._write(connection) if connection.to_send else self._read(connection))
        except BlockingIOError:
            return
        except OSError:  # the client has gone
            is_over = True
        if is_over:
            self._drop(connection)

    def _read(self, connection: Connection) -> bool:
        """False once it is over."""
        chunk = connection.sock.recv(LARGEST_REQUEST)
        if not chunk or connection.is_answered:
            return bool(chunk)
        connection.received += chunk
        if b"\r\n\r\n" not in connection.received and len(connection.received) < LARGEST_REQUEST:
            return True
        connection.to_send, connection.is_answered = memoryview(self._answer(bytes(connection.received))), True
        self._selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
        return self._write(connection)

    def _write(self, connection: Connection) -> bool:
        assert connection.to_send is not None  # noqa: S101 - as `_go_on` has looked
        connection.to_send = connection.to_send[connection.sock.send(connection.to_send) :]
        if not connection.to_send:
            connection.sock.shutdown(socket.SHUT_WR)
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
        return True

    def _answer(self, request: bytes) -> bytes:
        head, complete, _ = request.partition(b"\r\n\r\n")
        if not complete:
            return _as_bytes(_said(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request is too large."))
        first, *fields = head.decode("latin-1").split("\r\n")
        match first.split(" "):
            case [method, target, version] if version.startswith("HTTP/1."):
                pass
            case _:
                return _as_bytes(_said(HTTPStatus.BAD_REQUEST, "This is not a request in HTTP/1."))
        if method not in ("GET", "HEAD"):
            return _as_bytes(_said(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD are answered."), ("Allow: GET, HEAD",))
        answer = self._routed(target.partition("?")[0], _accepted(fields))
        return _as_bytes(answer, with_body=method == "GET")

    def _routed(self, path: str, accept: str) -> Answer:
        route = self._routes.get(path)
        if route is None:
            return _said(HTTPStatus.NOT_FOUND, f"There is nothing here. Ask for {', '.join(self._routes)}.")
        try:
            return route(accept)
        except Exception:
            if path not in self._failing:  # scraped every few seconds, it would fill the log
                self._failing.add(path)
                log.exception("%s failed; it is answered with 500. This is logged once.", path, extra={"event": "http-failed"})
            return _said(HTTPStatus.INTERNAL_SERVER_ERROR, "This failed; the log has the traceback.")


def _accepted(fields: list[str]) -> str:
    named = [field.partition(":") for field in fields]
    return ",".join(value.strip() for name, _, value in named if name.lower() == "accept")


def _said(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, f"{text}\n".encode(), "text/plain; charset=utf-8")


def _as_bytes(answer: Answer, more: tuple[str, ...] = (), *, with_body: bool = True) -> bytes:
    fields = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *more,
    )
    return "\r\n".join((*fields, "", "")).encode("latin-1") + (answer.body if with_body else b"")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address[:2], family=family, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"Metrics and health cannot be served at {host!r}, port {port}: {_why(error)}. So nothing is consumed. Choose an "
            f"address of this machine and a port that is free; port 0 takes any that is, and the log says which."
        ) from None
    listener.setblocking(False)
    return listener


def _why(error: OSError | UnicodeError) -> str:
    """Python adds the address to what the system says."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)
