"""What goes wrong while an order is shipped? What really goes wrong in shops, done for real: no exception stands in for a crash.

Each kind of trouble belongs to an item that a customer may order; see `poison` for the messages.
"""

import ctypes
import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from unpoison.cli.demo.ledger import Ledger
from unpoison.errors import Discard, Throttled

SUPERVISOR = "DEMO_SUPERVISOR"
"""The variable with the process id of whoever restarts the consumer."""

MIB = 1024 * 1024
FLAKY_CALLS = 1
QUOTA_OPENS_AFTER = 0.6


class Shipping(NamedTuple):
    """The order that is being shipped, and where it is written down how often that was begun."""

    order: int
    ledger: Ledger

    def starts(self) -> list[float]:
        return self.ledger.starts(self.order)


def flaky(shipping: Shipping) -> None:
    """The warehouse hangs up on the first call and answers the second."""
    if 0 < len(shipping.starts()) <= FLAKY_CALLS:
        raise ConnectionError("the warehouse hung up")


def rate_limited(shipping: Shipping) -> None:
    """The carrier takes no bookings for a moment, and says for how long."""
    starts = shipping.starts()
    if starts and starts[-1] - starts[0] < QUOTA_OPENS_AFTER:
        raise Throttled(retry_after=QUOTA_OPENS_AFTER, reason=f"the carrier answered 429, Retry-After: {QUOTA_OPENS_AFTER}")


def segfault(_: Shipping) -> None:
    """As a broken native library does."""
    ctypes.string_at(0)


def leave(_: Shipping) -> None:
    """As a library does that thinks it owns the process."""
    os._exit(3)


def eat_memory(_: Shipping) -> None:
    """A picture that unpacks to far more than the worker may have.

    Asked for at once: filled bit by bit, it would run into the time limit first on a busy machine. Where nobody set a limit
    these are zeros that take no memory before they are written to.
    """
    bytearray(1024 * MIB)


def hang(_: Shipping) -> None:
    """Wait, without a time limit, for an answer that never comes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def kill_consumer(_: Shipping) -> None:
    """Take down the process that talks to the broker. Only ever the one that the demo itself supervises."""
    supervisor = int(os.environ.get(SUPERVISOR, "0"))
    for process in (os.getpid(), os.getppid()):
        if supervisor and _parent_of(process) == supervisor:
            os.kill(process, signal.SIGKILL)
            signal.pause()
    raise RuntimeError("This order kills its consumer, but only where `unpoison demo` is there to start it again.")


def of_monitoring(shipping: Shipping) -> None:
    """An order that the monitoring placed to see whether orders arrive. They do; nobody wants it shipped."""
    shipping.ledger.write("discard", shipping.order)
    raise Discard("an order of the monitoring")


TROUBLES: Mapping[str, Callable[[Shipping], None]] = {
    "lamp": flaky,
    "piano": rate_limited,
    "font": segfault,
    "plugin": leave,
    "poster": eat_memory,
    "import": hang,
    "script": kill_consumer,
    "probe": of_monitoring,
}


def _parent_of(process: int) -> int:
    status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    return int(status.rpartition(")")[2].split()[1])
