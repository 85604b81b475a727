"""Passes what workers print on to standard output and standard error, in whole lines.

Each worker prints into a pipe of its own, and the consumer passes on what comes out of it line by line. So lines of two workers
never mix, however long they are and whatever wrote them: `print`, C code, a program that a handler has started. A line without
an end is passed on when the last process that could finish it is gone. A worker that is killed loses nothing of what it wrote.

A terminal is given to the workers as it is, so that programs find a terminal there: it takes each line as a whole anyway.
"""

import logging
import os
import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from unpoison.model.events import fields
from unpoison.reporting.log_lines import STANDARD_ERROR

log = logging.getLogger("unpoison")

CHUNK = 64 * 1024
"""Bytes read from a pipe at once: as many as it holds."""

LONGEST = 1024 * 1024
"""Bytes of a line that are kept until its end comes. A longer one is passed on in parts."""

LEFT = 1024 * 1024
"""Bytes read at the end from a pipe into which a process that outlives its worker may still be writing."""

STALLED = 5.0
"""Seconds without progress after which the rest of the output is given up: our own output is not being read."""

_NAMES = {1: "standard output", 2: "standard error"}
_LOCKS = {1: threading.RLock(), 2: STANDARD_ERROR}


class OutputRelay:
    """Passes on what the workers of one app print."""

    def __init__(self) -> None:
        self._relays: dict[int, _Relay] = {}

    def pipes(self) -> tuple[int, int]:
        """Where a new worker is to print: one descriptor for its standard output, one for its standard error. Close them
        once the worker has them."""
        if _is_relayed(1) and _file(1) == _file(2):  # one pipe for both keeps their order
            both = self._pipe(2)
            return both, os.dup(both)
        return self._descriptor(1), self._descriptor(2)

    def close(self) -> None:
        """Pass on what is still there. Called when all workers have ended."""
        for relay in self._relays.values():
            relay.close()
        self._relays.clear()

    def _descriptor(self, target: int) -> int:
        if _file(target) is None:
            return os.open(os.devnull, os.O_WRONLY)
        return self._pipe(target) if _is_relayed(target) else os.dup(target)

    def _pipe(self, target: int) -> int:
        if target not in self._relays:
            self._relays[target] = _Relay(target)
        return self._relays[target].pipe()


class _Relay:
    """A thread that reads from pipes and writes to one of this process's standard streams."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._pipes: dict[int, _Pipe] = {}
        self._ready = select.epoll()
        self._stop, self._stops = os.pipe()
        self._ready.register(self._stop, select.EPOLLIN)
        self._passed_on = 0
        self._is_broken = False
        self._thread = threading.Thread(target=self._serve, name=f"unpoison-output-{target}", daemon=True)
        self._thread.start()

    def pipe(self) -> int:
        source, sink = os.pipe()
        self._pipes[source] = _Pipe(source)
        self._ready.register(source, select.EPOLLIN)
        return sink

    def close(self) -> None:
        os.close(self._stops)
        before = -1
        while self._thread.is_alive() and before != self._passed_on:
            before = self._passed_on
            self._thread.join(STALLED)

    def _serve(self) -> None:
        while True:
            for source, _ in self._ready.poll():
                if source == self._stop:
                    self._finish()
                    return
                if not self._pass_on(self._pipes[source]):
                    self._end(self._pipes.pop(source))

    def _finish(self) -> None:
        for pipe in list(self._pipes.values()):
            os.set_blocking(pipe.source, False)
            taken = 0
            while taken < LEFT and (count := self._pass_on(pipe)):
                taken += count
            self._end(pipe)
        self._ready.close()
        os.close(self._stop)

    def _pass_on(self, pipe: "_Pipe") -> int:
        """Pass on the lines that have come. Returns how many bytes were read: 0 at the end of the pipe, or if there are none."""
        try:
            chunk = os.read(pipe.source, CHUNK)
        except BlockingIOError:
            return 0
        self._write(pipe.lines(chunk))
        return len(chunk)

    def _end(self, pipe: "_Pipe") -> None:
        """End a line that will not be finished: what comes next must not be taken for the rest of it."""
        os.close(pipe.source)
        if pipe.begun:
            self._write(bytes(pipe.begun) + b"\n")

    def _write(self, lines: bytes) -> None:
        if not lines:
            return
        try:
            with _LOCKS[self._target]:
                for piece in pieces(lines):
                    write_all(self._target, piece)
        except OSError as error:  # the reader is gone, the disk is full: no reason for a message to fail
            if not self._is_broken:
                what = "What handlers print there is dropped until it works again; messages are not affected"
                log.warning("Writing to %s failed: %s. %s.", _NAMES[self._target], error.strerror, what, extra=fields("output"))
            self._is_broken = True
        else:
            self._is_broken = False
        self._passed_on += len(lines)


@dataclass(slots=True)
class _Pipe:
    """The end from which the consumer reads what one worker prints."""

    source: int
    begun: bytearray = field(default_factory=bytearray)
    """A line whose end has not come yet."""

    def lines(self, chunk: bytes) -> bytes:
        """The whole lines that are there with this chunk; what is left waits for its end."""
        end = chunk.rfind(b"\n") + 1
        if not end and len(self.begun) + len(chunk) < LONGEST:
            self.begun += chunk
            return b""
        end = end or len(chunk)
        whole = bytes(self.begun) + chunk[:end]
        self.begun = bytearray(chunk[end:])
        return whole


def pieces(lines: bytes) -> Iterator[bytes]:
    """Whole lines, as many at once as a pipe takes in one step: others may write into it too. A longer line comes alone."""
    start = 0
    while start < len(lines):
        end = start + select.PIPE_BUF
        if end < len(lines):
            end = lines.rfind(b"\n", start, end) + 1 or lines.find(b"\n", end) + 1 or len(lines)
        yield lines[start:end]
        start = end


def write_all(descriptor: int, data: bytes) -> None:
    """All of it, even where the other end was made non-blocking."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            room = select.poll()
            room.register(descriptor, select.POLLOUT)
            room.poll()


def _is_relayed(descriptor: int) -> bool:
    return _file(descriptor) is not None and not os.isatty(descriptor)


def _file(descriptor: int) -> tuple[int, int] | None:
    """Which file a descriptor stands for; None if it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
