"""The messages between consumer, template and workers.

Everything is plain data in msgpack over SEQPACKET sockets, which keep messages whole. A message that is too large for a packet
travels in a memory file whose descriptor is passed along.
"""

import enum
import mmap
import os
import socket
from typing import TypeVar

import msgspec

from unpoison.decide.options import ConsumerOptions, Settings
from unpoison.model.failure import Failure
from unpoison.model.message import Delivery, Message, MessageMetadata

PACKET = 128 * 1024
_INLINE, _FILE = b"i", b"f"


class Run(msgspec.Struct, frozen=True, tag="run"):
    """To a worker: run these bodies in this order; None is a tombstone. `code` is what success looks like for this batch."""

    slot: int
    code: int
    bodies: list[bytes | None]
    deliveries: list[Delivery] | None = None


class RunLanes(msgspec.Struct, frozen=True, tag="lanes"):
    """To a worker with lanes: start each of these in its lane."""

    lanes: list[int]
    codes: list[int]
    """How the success of each is marked."""
    deliveries: list[Delivery]


class Hook(msgspec.Struct, frozen=True, tag="hook"):
    """To a worker for hooks: call on_retry (with the delay) or on_dlq (with the failure)."""

    message: Message
    metadata: MessageMetadata
    failure: Failure
    delay: float | None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """To a worker: stop cleanly."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """From a worker: on_worker_start has run, batches may come."""


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """From a template or worker: it cannot start, and why. From a worker for hooks also: a hook raised."""

    text: str
    traceback: str = ""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """From a worker: this batch is over (or these lanes are); the shared memory shows how. `peak` is memory in bytes."""

    slot: int
    lanes: list[int] = []
    peak: int = 0
    leaving: bool = False
    """Something is wrong with the worker: it ran no further than its marks show, starts nothing more and ends by itself."""
    took: int = 0
    """Nanoseconds for which the message of this lane ran. Of a batch the shared memory shows that too."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """From a worker, before it marks the message as failed: what happened."""

    slot: int
    index: int
    failure: Failure
    took: int = 0
    """Nanoseconds for which it ran."""


class Damaged(msgspec.Struct, frozen=True, tag="damaged"):
    """From a worker, before it sends more about the batch: a check found that it is not what it was when it started.

    One of the messages `first` to `last` of the batch did it, or, with lanes, one of those in hand or lately ended.
    `what` is what has changed, in words; the last of these are about `reversible`, one each: what can be put back, and was,
    unless the damage `is_lasting`.
    """

    slot: int
    first: int
    last: int
    what: list[str]
    reversible: list[str]
    is_lasting: bool


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """To the template: fork a worker for this source; its socket and other descriptors come along."""

    source: str
    number: int
    for_hooks: bool = False


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """From the template: the worker's process id."""

    pid: int


class Consumer(msgspec.Struct, frozen=True):
    """One consumer as plain data: what the consumer process needs to know without importing any user code."""

    options: ConsumerOptions
    needs_delivery: bool
    has_on_retry: bool
    has_on_dlq: bool


class Described(msgspec.Struct, frozen=True, tag="described"):
    """From the template, once the app is imported. `threads` were started by the import and make forking unsafe."""

    settings: Settings
    consumers: list[Consumer]
    threads: list[str] = []


ToWorker = Run | RunLanes | Hook | Stop
FromWorker = Ready | Broken | Ended | Failed | Damaged
FromTemplate = Described | Broken | Forked

_encoder = msgspec.msgpack.Encoder(enc_hook=dict)  # the shared empty headers are a mapping proxy
to_worker = msgspec.msgpack.Decoder(ToWorker)
from_worker = msgspec.msgpack.Decoder(FromWorker)
from_template = msgspec.msgpack.Decoder(FromTemplate)
to_template = msgspec.msgpack.Decoder(Fork)

Decoded = TypeVar("Decoded")


class Sent(enum.Enum):
    """Whether a worker was sent something: yes; not now, it has too much to read; or never, it cannot be reached."""

    YES = enum.auto()
    NOT_NOW = enum.auto()
    NEVER = enum.auto()


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, said: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
    """Send a message. Blocks only while the other side is busy reading."""
    data = _encoder.encode(said)
    if len(data) < PACKET and not descriptors:
        sock.send(_INLINE + data)
        return
    if len(data) < PACKET:
        socket.send_fds(sock, [_INLINE + data], list(descriptors))
        return
    file = os.memfd_create("unpoison-batch", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        socket.send_fds(sock, [_FILE], [file])
    finally:
        os.close(file)


def receive(sock: socket.socket, decoder: "msgspec.msgpack.Decoder[Decoded]") -> tuple[Decoded, list[int]] | None:
    """The next message, with the descriptors that came along; None once the other side is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, PACKET + 1, 16)
    except ConnectionError:
        return None
    for descriptor in descriptors:
        # A program that a handler starts must not hold the worker's socket, nor its inherited descriptors.
        os.set_inheritable(descriptor, False)
    if not data:
        return None
    if data[:1] == _INLINE:
        return decoder.decode(memoryview(data)[1:]), descriptors
    (file,) = descriptors
    try:
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as content:
            return decoder.decode(content), []
    finally:
        os.close(file)
