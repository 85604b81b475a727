"""What the shop does with an order. unpoison's workers and the plain loop call the same function."""

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from unpoison.errors import Discard, Throttled

# The ledger: handlers record each start and each end themselves, in a file that unpoison does not know. A line is appended in one
# write, so a killed process leaves whole lines, and its work is still counted.


VARIABLE = "DEMO_LEDGER"


class Entry(NamedTuple):
    """One line: when, what (start, done, discard, requeue) and of which order."""

    at: float
    what: str
    order: int


class Ledger:
    """The writing end, used by handlers. Without a path nothing is written."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    @classmethod
    def of_this_process(cls) -> "Ledger":
        """The one that the demo named in the environment of its processes."""
        return cls(os.environ.get(VARIABLE))

    def write(self, what: str, order: int) -> None:
        if self._path is None:
            return
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{time.time():.6f} {what} {order}\n".encode())
        finally:
            os.close(file)

    def starts(self, order: int) -> list[float]:
        """When this order was started, so far."""
        if self._path is None:
            return []
        return [entry.at for entry in map(entry_of, Tail(Path(self._path)).lines()) if entry[1:] == ("start", order)]


class Tail:
    """Gives the lines that were added to a file since it was last asked. The file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self._read += len(whole) + 1
        return whole.decode("utf-8", "replace").split("\n")


def entry_of(line: str) -> Entry:
    at, what, order = line.split(" ")
    return Entry(float(at), what, int(order))


# What goes wrong while an order is shipped. The crashes are real; no exception stands in for one. Each kind of trouble belongs to
# an item that a customer may order; see `poison` for the messages.


SUPERVISOR = "DEMO_SUPERVISOR"
"""The variable with the process id of the supervisor that restarts the consumer."""

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
    """Crash, as a broken native library does."""
    ctypes.string_at(0)


def leave(_: Shipping) -> None:
    """End the process, as some libraries do."""
    os._exit(3)


def eat_memory(_: Shipping) -> None:
    """A picture that unpacks to far more than the worker may have.

    Asked for at once: filled bit by bit, it would run into the time limit first on a busy machine. Without a memory
    limit these are zeros that take no memory until they are written to.
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
    """A test order of the monitoring, which must not be shipped."""
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


# The handler.


WORK = 0.008
"""Seconds that shipping takes: the call to a carrier that a real shop would make here."""

MEMORY = 128 * MIB
"""Memory limit of a process that ships orders."""

CATALOGUE = {"book": 9.5, "pen": 1.2, "mug": 7.9, "tea": 4.4, "map": 12.0} | dict.fromkeys(TROUBLES, 20.0)


class Order(msgspec.Struct):
    """What a customer wants."""

    id: int
    customer: str | None
    item: str
    quantity: int
    address: str
    note: str = ""


def ship(order: Order) -> None:
    """Ship an order, with the kinds of trouble that a shop has."""
    ledger = Ledger.of_this_process()
    ledger.write("start", order.id)
    price = CATALOGUE[order.item]
    if order.item in TROUBLES:
        TROUBLES[order.item](Shipping(order.id, ledger))
    order.address.encode("ascii")  # the carrier's labels know nothing else
    print_label(order.customer.title(), order.quantity * price)  # type: ignore[union-attr]  # the bug: guests have no name
    ledger.write("done", order.id)


def print_label(name: str, value: float) -> str:
    time.sleep(WORK)
    return f"{name}: {value:.2f}"
