"""How do a container's probe and systemd learn, without asking over a network, that this process lives?

By a file whose time is renewed while all loops turn, and by datagrams to systemd. Neither can hurt the consumers: what cannot be
written or sent is logged, and they go on.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("unpoison")

TOUCH_EVERY = 5.0
"""Seconds between two touches of a heartbeat file."""

REMIND_EVERY = 60.0


class HeartbeatFile:
    """A file whose time of change says when all loops were last known to turn."""

    def __init__(self, path: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path, self._monotonic = Path(path).absolute(), monotonic
        self._due = self._told = float("-inf")
        self._is_failing = False

    def due_in(self) -> float:
        return self._due - self._monotonic()

    def turns(self) -> None:
        """To be called while all loops turn."""
        if self.due_in() > 0:
            return
        self._due = self._monotonic() + TOUCH_EVERY
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._failed(error)
        else:
            if self._is_failing:
                log.warning("Heartbeat file %r is written again.", str(self._path), extra={"event": "heartbeat-resumed"})
            self._is_failing, self._told = False, float("-inf")

    def remove(self) -> None:
        """At an orderly end."""
        with suppress(OSError):
            self._path.unlink()

    def _failed(self, error: OSError) -> None:
        self._is_failing = True
        if self._monotonic() - self._told < REMIND_EVERY:
            return
        self._told = self._monotonic()
        log.error(
            "Heartbeat file %r cannot be written: %s. Messages are consumed all the same, but whoever looks at the file takes "
            "this process for dead and may end it. Choose a file that this user may write: heartbeat_file, --heartbeat-file.",
            str(self._path),
            error.strerror or error,
            extra={"event": "heartbeat-failed"},
        )


class Systemd:
    """What systemd hears of a service with Type=notify: each message is a datagram of NAME=value."""

    def __init__(self, address: str, watchdog: float | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address  # @: a name that is no file
        self._every, self._monotonic = None if watchdog is None else watchdog / 2, monotonic
        self._due = float("-inf")
        self._said: dict[str, str] = {}
        self._has_failed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Systemd | None":
        """None if this process was not started by systemd as a service that notifies."""
        address = environment.get("NOTIFY_SOCKET", "")
        if address[:1] not in ("/", "@"):
            return None
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environment.get("WATCHDOG_USEC", "")
        has_watchdog = is_ours and microseconds.isdecimal() and int(microseconds) > 0
        return cls(address, int(microseconds) / 1e6 if has_watchdog else None)

    def due_in(self) -> float:
        """Seconds until the watchdog is to be told that all loops turn."""
        return float("inf") if self._every is None else self._due - self._monotonic()

    def turns(self) -> None:
        """To be called while all loops turn."""
        if self._every is not None and self.due_in() <= 0 and self._is_sent("WATCHDOG=1"):
            self._due = self._monotonic() + self._every

    def tell(self, **news: str) -> None:
        """Send what has changed, as in READY="1"."""
        changed = {name: value for name, value in news.items() if self._said.get(name) != value}
        if changed and self._is_sent("\n".join(f"{name}={value}" for name, value in changed.items())):
            self._said |= changed

    def close(self) -> None:
        self._socket.close()

    def _is_sent(self, text: str) -> bool:
        """False if it has to be sent again."""
        try:
            self._socket.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                what = "systemd could not be told %r: %s. It is tried again every second; this is logged once."
                log.warning(what, text, error.strerror or error, extra={"event": "systemd-failed"})
            return False
        return True
