"""A server between a client and a broker that lets a request through and takes its answer away."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from unpoison.port.broker import Broker


class CuttingProxy:
    """Stands before the server at `url`; its own `url` leads through it. A connection over which these bytes were sent, one after
    the other, is cut when the server answers: it has done what it was asked for, and the client does not learn of it."""

    def __init__(self, url: str, *markers: bytes) -> None:
        place = urlsplit(url)
        self._target, self._markers = (place.hostname or "127.0.0.1", place.port or 0), markers
        self._listener = socket.create_server(("127.0.0.1", 0))
        credentials = "".join(place.netloc.rpartition("@")[:2])
        self.url = place._replace(netloc=f"{credentials}127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="cutting-proxy", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.close()
        for each in self._sockets:
            _hang_up(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                pair = _Pair(client, server, self._markers)
                for pump in (pair.to_server, pair.to_client):
                    threading.Thread(target=pump, name="cutting-proxy-pump", daemon=True).start()


class _Pair:
    def __init__(self, client: socket.socket, server: socket.socket, markers: tuple[bytes, ...]) -> None:
        self._client, self._server, self._left = client, server, list(markers)

    def to_server(self) -> None:
        seen = b""
        with suppress(OSError):
            while data := self._client.recv(65536):
                seen = (seen + data)[-70_000:]
                while self._left and self._left[0] in seen:
                    seen = seen.partition(self._left.pop(0))[2]
                self._server.sendall(data)
        _hang_up(self._server)

    def to_client(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(65536):
                if not self._left:
                    break
                self._client.sendall(data)
        _hang_up(self._client)
        _hang_up(self._server)


def _hang_up(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextmanager
def opened_through(proxy: CuttingProxy, connect: Callable[[str], Broker]) -> Iterator[Broker]:
    """A connection through the proxy, with "orders" opened."""
    with proxy:
        broker = connect(proxy.url)
        broker.open(["orders"])
        try:
            yield broker
        finally:
            broker.close()
