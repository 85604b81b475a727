"""A proxy that lets a request through and takes its answer away."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.proxy import Proxy, hang_up
from unpoison.port.broker import Broker


class CuttingProxy(Proxy):
    """A connection over which these bytes were sent, one after the other, is cut when the server answers: it has done what it was
    asked for, and the client does not learn of it."""

    def __init__(self, url: str, *markers: bytes) -> None:
        super().__init__(url)
        self._markers = markers

    def connected(self, client: socket.socket, server: socket.socket) -> None:
        pair = _Pair(client, server, self._markers)
        self.start(pair.to_server)
        self.start(pair.to_client)


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
        hang_up(self._server)

    def to_client(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(65536):
                if not self._left:
                    break
                self._client.sendall(data)
        hang_up(self._client)
        hang_up(self._server)


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
