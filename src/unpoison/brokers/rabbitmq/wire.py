"""Read and write the frames of messages, many at a time and with any content.

pika does the talking: login, TLS, heartbeats, declarations. Two things it does not do for us. It decodes every header, and
drops the connection over one that it cannot (a timestamp in milliseconds is enough); and it spends most of a consumer's
time on each message. So content frames on the channels that we read and write messages on are handled here: their
properties stay bytes until they are needed.
"""

import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pika import frame
from pika.adapters.select_connection import SelectConnection

_HEAD = struct.Struct(">BHI")
_METHOD = struct.Struct(">HH")
_TAG = struct.Struct(">QB")
_CONTENT = struct.Struct(">HHQ")
_ACK = struct.Struct(">BHIHHQBB")
_END = b"\xce"
METHOD, HEADER, BODY = 1, 2, 3
DELIVER, RETURN, GET_OK, GET_EMPTY, ACK, NACK = 60, 50, 71, 72, 80, 120
_BASIC = 60


class Arrived(NamedTuple):
    """A message as it came: nothing in it has been looked at."""

    tag: int
    redelivered: bool
    properties: bytes
    body: bytes
    route: bytes = b""
    """Exchange and routing key that it was published with, each with its length before it."""
    consumer: bytes = b""
    """To which consumer of the channel it was pushed; none if it was pulled."""


class Tap:
    """Receives what comes on one channel. Called in the connection's thread; a subclass has the methods that it needs."""

    def arrived(self, message: Arrived) -> None:
        """A message was pushed or pulled."""

    def confirmed(self, tag: int, multiple: bool, positive: bool) -> None:
        """The server has stored what was published, or refused to."""

    def returned(self, exchange: str, routing_key: str, why: str) -> None:
        """What was published cannot be routed."""

    def nothing_there(self) -> None:
        """There was no message to pull."""

    def drained(self) -> None:
        """Everything that came with one reading of the socket has been handed over."""


class _Reader:
    """Puts one channel's content frames together."""

    __slots__ = ("_answer", "_body", "_left", "_meta", "_properties", "tap")

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self._meta: Any = None
        self._answer = 0
        self._properties = b""
        self._body: list[bytes] = []
        self._left = 0

    def take(self, kind: int, data: bytes, start: int, end: int) -> bool:
        """True if the frame was one for the tap."""
        if kind == METHOD:
            return self._method(data, start, end)
        if kind == HEADER:
            _, _, self._left = _CONTENT.unpack_from(data, start)
            self._properties = data[start + 12 : end]
            self._body = []
        else:
            self._body.append(data[start:end])
            self._left -= end - start
        if self._left <= 0:
            self._finish()
        return True

    def _method(self, data: bytes, start: int, end: int) -> bool:
        group, method = _METHOD.unpack_from(data, start)
        if group != _BASIC:
            return False
        start += 4
        if method == DELIVER:
            at = start + 1 + data[start]
            tag, redelivered = _TAG.unpack_from(data, at)
            self._meta, self._answer = (tag, redelivered == 1, data[at + 9 : end], data[start + 1 : at]), DELIVER
        elif method == GET_OK:
            tag, redelivered = _TAG.unpack_from(data, start)
            self._meta, self._answer = (tag, redelivered == 1, data[start + 9 : end - 4], b""), DELIVER
        elif method == RETURN:
            text, at = _short(data, start + 2)
            exchange, at = _short(data, at)
            routing_key, at = _short(data, at)
            self._meta, self._answer = (exchange, routing_key, text), RETURN
        elif method in (ACK, NACK):
            tag, bits = _TAG.unpack_from(data, start)
            self.tap.confirmed(tag, bool(bits & 1), method == ACK)
        elif method == GET_EMPTY:
            self.tap.nothing_there()
        else:
            return False
        return True

    def _finish(self) -> None:
        if self._answer == RETURN:
            self.tap.returned(*self._meta)
            return
        tag, redelivered, route, consumer = self._meta
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.tap.arrived(Arrived(tag, redelivered, self._properties, body, route, consumer))


class Wire(SelectConnection):  # type: ignore[misc]  # the client comes without types
    """A pika connection whose content frames go to taps, by channel number."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._taps: dict[int, _Reader] = {}
        self._frame_buffer = b""
        self.is_paused = False
        super().__init__(*arguments, **options)

    def tap(self, channel: int, tap: Tap | None) -> None:
        if tap is None:
            self._taps.pop(channel, None)
        else:
            self._taps[channel] = _Reader(tap)

    def pause(self, paused: bool) -> None:
        """Read nothing for a while: the server's next messages wait on the way. Acks and heartbeats still go out."""
        transport = self._transport
        if paused == self.is_paused or transport is None or not self.is_open:
            return
        self.is_paused = paused
        descriptor, read = transport._sock.fileno(), transport._on_socket_readable  # noqa: SLF001 - the client has no other way
        if paused:
            self._nbio.remove_reader(descriptor)
        else:
            self._nbio.set_reader(descriptor, read)
            self._nbio.add_callback_threadsafe(read)  # TLS may have read more than it gave out

    def stay_alive(self) -> None:
        """While nothing is read no heartbeat of the server is either; that is no reason to call it dead."""
        self.bytes_received += self.is_paused

    def emit(self, data: bytes) -> None:
        """Write frames that are ready."""
        self.bytes_sent += len(data)
        self._adapter_emit_data(data)

    def _on_data_available(self, data_in: bytes) -> None:
        data = self._frame_buffer + data_in if self._frame_buffer else data_in
        self.bytes_received += len(data_in)  # what the heartbeat checker looks at
        position, length, taps = 0, len(data), self._taps
        while length - position >= 8:
            kind, channel, size = _HEAD.unpack_from(data, position)
            if kind not in (1, 2, 3, 8):
                break
            end = position + 7 + size
            if end >= length:
                self._frame_buffer = data[position:]
                self._tell_drained()
                return
            reader = taps.get(channel)
            if reader is None or not reader.take(kind, data, position + 7, end):
                self._frame_buffer = b""
                self._process_frame(frame.decode_frame(data[position : end + 1])[1])
            position = end + 1
        self._frame_buffer = data[position:]
        if length - position >= 8:  # not a frame: the server speaks another version, which pika explains
            super()._on_data_available(b"")
        self._tell_drained()

    def _tell_drained(self) -> None:
        for reader in list(self._taps.values()):
            reader.tap.drained()


def publish_frames(channel: int, exchange: str, routing_key: str, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """One mandatory basic.publish with its content."""
    method = b"\x00\x3c\x00\x28\x00\x00" + short(exchange) + short(routing_key) + b"\x01"
    header = _CONTENT.pack(_BASIC, 0, len(body)) + properties
    frames = [_HEAD.pack(METHOD, channel, len(method)), method, _END, _HEAD.pack(HEADER, channel, len(header)), header, _END]
    most = frame_max - 8
    if 0 < len(body) <= most:
        frames += (_HEAD.pack(BODY, channel, len(body)), body, _END)
    else:
        for start in range(0, len(body), most):
            part = body[start : start + most]
            frames += (_HEAD.pack(BODY, channel, len(part)), part, _END)
    return b"".join(frames)


HOLE_LASTS = 0.05
"""Seconds after which a hole is no longer waited for."""

Ack = tuple[int, bool]
"""A tag, and whether it speaks for all before it."""


class AckRanges:
    """Which acknowledgements of one channel are due. Tags begin with 1.

    A finished stretch without a hole in it takes one cumulative ack. What is finished beyond the first hole is acked one by one,
    in one write, once enough has gathered or the hole has lasted: one slow message does not hold up the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 1
        self._finished: set[int] = set()
        self._singly: set[int] = set()
        self._since = 0.0

    def finish(self, tags: Iterable[int], enough: int) -> list[Ack]:
        """These have ended; returns what is to be acked now. `enough` finished ones beyond a hole do not wait for it."""
        if not self._finished:
            self._since = self._clock()
        self._finished.update(tags)
        acks = self._prefix()
        if self._finished and (len(self._finished) >= enough or self._clock() - self._since >= HOLE_LASTS):
            acks += self.flush()
        return acks

    def flush(self) -> list[Ack]:
        """Ack all that is finished, hole or not."""
        acks = [(tag, False) for tag in sorted(self._finished)]
        self._singly |= self._finished
        self._finished.clear()
        return acks

    @property
    def is_waiting(self) -> bool:
        return bool(self._finished)

    def _prefix(self) -> list[Ack]:
        start = self._next
        finished, singly = self._finished, self._singly
        last = 0
        while True:
            if self._next in finished:
                finished.discard(self._next)
                last = self._next
            elif self._next in singly:
                singly.discard(self._next)
            else:
                break
            self._next += 1
        if last == 0:
            return []
        self._since = self._clock()
        return [(last, last > start)]


def ack_frames(channel: int, acks: Sequence[Ack]) -> bytes:
    return b"".join([_ACK.pack(METHOD, channel, 13, _BASIC, ACK, tag, multiple, 0xCE) for tag, multiple in acks])


def get_frame(channel: int, queue: str) -> bytes:
    """Ask for one message."""
    return _method_frame(channel, b"\x00\x3c\x00\x46\x00\x00" + short(queue) + b"\x00")


def consume_frame(channel: int, queue: str, consumer: str) -> bytes:
    """Consume without waiting for an answer; what comes is let go at once."""
    return _method_frame(channel, b"\x00\x3c\x00\x14\x00\x00" + short(queue) + short(consumer) + b"\x0a" + bytes(4))


def cancel_frame(channel: int, consumer: str) -> bytes:
    """Consume no longer; without an answer too."""
    return _method_frame(channel, b"\x00\x3c\x00\x1e" + short(consumer) + b"\x01")


def _method_frame(channel: int, method: bytes) -> bytes:
    return _HEAD.pack(METHOD, channel, len(method)) + method + _END


def short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def read_route(route: bytes) -> tuple[str, str]:
    """Exchange and routing key of a message that arrived with this."""
    exchange, at = _short(route, 0)
    return exchange, _short(route, at)[0]


def _short(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode("utf-8", "replace"), end
