"""Wakes a consumer from another thread: a bell that can be waited for together with sockets."""

import os
import select
from contextlib import suppress


class Bell:
    """`ring` from any thread; `wait` returns at once if it has rung since it was last silenced."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it is ringing already, as loud as it can
            os.write(self._write, (1).to_bytes(8, "little"))

    def silence(self) -> None:
        with suppress(BlockingIOError):  # it was silent
            os.read(self._read, 4096)

    def wait(self, timeout: float) -> None:
        waiting = select.poll()  # and not select.select, which knows only the first 1,024 descriptors of a process
        waiting.register(self._read, select.POLLIN)
        waiting.poll(max(0.0, timeout) * 1000)
        self.silence()

    def __del__(self) -> None:
        """Only now: a thread that still rings it would write into whatever has its descriptor number by then."""
        with suppress(OSError, AttributeError):  # there may have been no descriptor left to make it with
            os.close(self._read)
            if self._write != self._read:
                os.close(self._write)
