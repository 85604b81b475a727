"""Read and write many messages at the cost of a few.

The client makes the connection, logs in, keeps it alive. What passes through is read here: its own parser takes each message
through a queue and a task, which costs more than everything else together. Whole batches are written as one piece of bytes.
"""

from collections.abc import Callable, Iterable
from typing import Any

from nats.aio.client import Client
from nats.protocol.parser import Parser

Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""Gets subject, reply subject, header block and body of a message, in the loop's thread."""

CRLF = b"\r\n"
VERSION = b"NATS/1.0"


class Tap(Parser):
    """Reads what the server sends: messages go to the sinks of their subscriptions, the rest to the client."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.sinks: dict[bytes, Sink] = {}
        self._chunks: list[bytes] = []
        self._size = self._needed = 0

    async def parse(self, data: bytes = b"") -> None:
        self._chunks.append(data)
        self._size += len(data)
        if self._size < self._needed:  # the rest of a large message is still on its way
            return
        data = data if len(self._chunks) == 1 else b"".join(self._chunks)
        done = 0
        while done < len(data):
            ends, self._needed = self._message(data, done)
            if ends == 0:
                ends = await self._other(data, done)
            if ends == 0:
                break
            done = ends
        self._chunks = [data[done:]] if done < len(data) else []
        self._size = len(data) - done
        self._needed = max(0, self._needed - done)

    def _message(self, data: bytes, start: int) -> tuple[int, int]:
        """Where the message that starts here ends, and how many bytes are needed for that; 0 if it is not whole, or none."""
        has_headers = data.startswith(b"HMSG ", start)
        if not has_headers and not data.startswith(b"MSG ", start):
            return 0, 0
        line = data.find(CRLF, start)
        if line < 0:
            return 0, 0
        words = data[start:line].split()
        body = line + 2
        ends = body + int(words[-1]) + 2
        if ends > len(data):
            return 0, ends
        sink = self.sinks.get(words[2])
        if sink is not None:
            split = body + int(words[-2]) if has_headers else body
            reply = words[3] if len(words) == (6 if has_headers else 5) else b""
            sink(words[1], reply, data[body:split], data[split : ends - 2])
        return ends, 0

    async def _other(self, data: bytes, start: int) -> int:
        """Anything else is one line, and the client's."""
        line = data.find(CRLF, start)
        if line < 0 or data.startswith((b"MSG ", b"HMSG "), start):
            return 0
        await super().parse(data[start : line + 2])
        return line + 2


def publication(subject: bytes, reply: bytes, block: bytes, body: bytes) -> bytes:
    """One message on its way to the server. An empty block is no headers."""
    if not block:
        return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(body), body)
    return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (subject, reply, len(block), len(block) + len(body), block, body)


def answers(replies: Iterable[bytes], word: bytes, confirm: bytes = b"") -> bytes:
    """What is told the server about deliveries: `word` to each reply subject, the last one with a confirmation asked for."""
    *others, last = replies
    told = b"PUB %%s %d\r\n%s\r\n" % (len(word), word)
    return b"".join([told % reply for reply in others]) + publication(last, confirm, b"", word)


def status(block: bytes) -> int:
    """The status code in a header block: 404, 408 …; 0 if there is none."""
    first = block[len(VERSION) : block.find(CRLF)].split(None, 1) if block.startswith(VERSION) else []
    return int(first[0]) if first and first[0].isdigit() else 0


def told(block: bytes) -> str:
    """The words behind the status code."""
    return block[len(VERSION) : block.find(CRLF)].decode("utf-8", "replace").strip()


def install(client: Client) -> Tap:
    """Have this client read through a tap, from now on."""
    tap = Tap(client)
    hidden: Any = client
    hidden._ps = tap  # noqa: SLF001 - there is no other way in
    return tap


def write(client: Client, data: bytes) -> None:
    """Only in the loop's thread."""
    hidden: Any = client
    if hidden._transport is not None:  # noqa: SLF001
        hidden._transport.write(data)  # noqa: SLF001
