"""A server between a client and another server: what passes through it can be held up, or taken away."""

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy(ABC):
    """Stands before the server at `url`; its own `url` leads through it. A subclass says what happens to a connection:
    `connected` gets its two ends and starts what passes bytes on."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._target = (place.hostname or "127.0.0.1", place.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        credentials = "".join(place.netloc.rpartition("@")[:2])
        self.url = place._replace(netloc=f"{credentials}127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        self.start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.close()
        self.cut()

    @abstractmethod
    def connected(self, client: socket.socket, server: socket.socket) -> None:
        """A client has connected, and this is its connection to the server."""

    def start(self, run: Callable[[], object]) -> None:
        threading.Thread(target=run, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """End all connections."""
        for each in self._sockets:
            hang_up(each)
        self._sockets.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self.connected(client, server)


def hang_up(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
