"""A proxy before RabbitMQ that holds things up on purpose: confirms, or everything."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType

from tests.proxy import Proxy

_HEAD = struct.Struct(">BHI")
_METHOD, _CONFIRMS = 1, {(60, 80), (60, 120)}


class AMQPProxy(Proxy):
    """Holds up confirms, or everything, at any time."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._changed = threading.Condition()
        self._withholding = self._frozen = False
        self._withheld: list[tuple[socket.socket, bytes]] = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.thaw()
        super().__exit__(kind, error, trace)

    def withhold_confirms(self) -> None:
        self._withholding = True

    def release_confirms(self) -> None:
        with self._changed:
            self._withholding = False
            for client, frame in self._withheld:
                client.sendall(frame)
            self._withheld.clear()

    @property
    def withheld(self) -> int:
        with self._changed:
            return len(self._withheld)

    def freeze(self) -> None:
        """As if the network were gone: nothing passes, and nobody is told."""
        self._frozen = True

    def thaw(self) -> None:
        with self._changed:
            self._frozen = False
            self._changed.notify_all()

    def connected(self, client: socket.socket, server: socket.socket) -> None:
        to_client = _Frames(partial(self._to_client, client)).feed
        self.start(partial(self._pump, client, server.sendall))
        self.start(partial(self._pump, server, to_client))

    def _pump(self, source: socket.socket, pass_on: Callable[[bytes], object]) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                with self._changed:
                    self._changed.wait_for(lambda: not self._frozen)
                pass_on(data)
        self._hang_up(source)

    def _hang_up(self, source: socket.socket) -> None:
        """Each connection is a pair: if one end is gone, so is the other."""
        with suppress(ValueError, OSError):
            at = self._sockets.index(source)
            self._sockets[at ^ 1].shutdown(socket.SHUT_RDWR)

    def _to_client(self, client: socket.socket, frame: bytes) -> None:
        is_confirm = frame[0] == _METHOD and struct.unpack_from(">HH", frame, 7) in _CONFIRMS
        with self._changed:
            if is_confirm and self._withholding:
                self._withheld.append((client, frame))
                return
        client.sendall(frame)


class _Frames:
    """Puts what comes from the server together to frames."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell
        self._data = b""

    def feed(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= _HEAD.size:
            size = _HEAD.unpack_from(self._data)[2] + _HEAD.size + 1
            if len(self._data) < size:
                return
            frame, self._data = self._data[:size], self._data[size:]
            self._tell(frame)
