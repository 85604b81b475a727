"""The shop of the demo: its handler, which unpoison's workers and the plain loop both call, and the orders that are published."""

import ctypes
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


def record(what: str, order: int) -> None:
    """Write a line into the ledger of this process, if it has one."""
    if path := os.environ.get(VARIABLE):
        with Path(path).open("ab", buffering=0) as file:
            file.write(f"{time.time():.6f} {what} {order}\n".encode())


def starts_of(order: int) -> list[float]:
    """When this order was started, according to the ledger of this process."""
    path = os.environ.get(VARIABLE)
    entries = map(entry_of, Tail(Path(path)).lines()) if path else ()
    return [entry.at for entry in entries if entry[1:] == ("start", order)]


class Tail:
    """The lines added to a file since the last call. The file need not exist yet."""

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
# an item that a customer may order.


SUPERVISOR = "DEMO_SUPERVISOR"
"""The variable with the process id of the supervisor that restarts the consumer."""

MIB = 1024 * 1024
FLAKY_CALLS = 1
QUOTA_OPENS_AFTER = 0.6


def flaky(order: int) -> None:
    """The warehouse hangs up on the first call and answers the second."""
    if 0 < len(starts_of(order)) <= FLAKY_CALLS:
        raise ConnectionError("the warehouse hung up")


def rate_limited(order: int) -> None:
    """The carrier takes no bookings for a moment, and says for how long."""
    starts = starts_of(order)
    if starts and starts[-1] - starts[0] < QUOTA_OPENS_AFTER:
        raise Throttled(retry_after=QUOTA_OPENS_AFTER, reason=f"the carrier answered 429, Retry-After: {QUOTA_OPENS_AFTER}")


def segfault(_: int) -> None:
    """As a broken native library does."""
    ctypes.string_at(0)


def leave(_: int) -> None:
    """As some libraries do."""
    os._exit(3)


def eat_memory(_: int) -> None:
    """A picture that unpacks to far more than the worker may have.

    Asked for at once: filled bit by bit, it would run into the time limit first on a busy machine. Without a memory
    limit these are zeros that take no memory until they are written to.
    """
    bytearray(1024 * MIB)


def hang(_: int) -> None:
    """Wait, without a time limit, for an answer that never comes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def kill_consumer(_: int) -> None:
    """Kill the process that talks to the broker, and only one that the demo itself supervises."""
    supervisor = int(os.environ.get(SUPERVISOR, "0"))
    for process in (os.getpid(), os.getppid()):
        if supervisor and _parent_of(process) == supervisor:
            os.kill(process, signal.SIGKILL)
            signal.pause()
    raise RuntimeError("This order kills its consumer, but only where `unpoison demo` is there to start it again.")


def of_monitoring(order: int) -> None:
    """A test order of the monitoring, which must not be shipped."""
    record("discard", order)
    raise Discard("an order of the monitoring")


TROUBLES: Mapping[str, Callable[[int], None]] = {
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
    record("start", order.id)
    price = CATALOGUE[order.item]
    if order.item in TROUBLES:
        TROUBLES[order.item](order.id)
    order.address.encode("ascii")  # the carrier's labels know nothing else
    print_label(order.customer.title(), order.quantity * price)  # type: ignore[union-attr]  # the bug: guests have no name
    record("done", order.id)


def print_label(name: str, value: float) -> str:
    time.sleep(WORK)
    return f"{name}: {value:.2f}"


# The orders: sound ones, and one of each kind of poison. The same seed gives the same bytes.


Content = dict[str, Any]

CUSTOMERS = ("ada", "grace", "edsger", "barbara", "alan", "frances", "donald", "hedy")
ITEMS = ("book", "pen", "mug", "tea", "map")
STREETS = ("Mill Lane", "High Street", "Station Road", "Church Walk", "Harbour Row")


class Kind(NamedTuple):
    """One kind of poison: what is wrong, how its body is made of a sound order, and how it must end.

    `classification` is what the dead letter must say; kinds that heal or are discarded leave no letter.
    """

    name: str
    story: str
    body: Callable[[Content], bytes]
    fate: str
    classification: str | None = None


def encoded(content: Content) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def _with(**changes: Any) -> Callable[[Content], bytes]:
    return lambda content: encoded(content | changes)


def _without(field: str) -> Callable[[Content], bytes]:
    return lambda content: encoded({name: value for name, value in content.items() if name != field})


def _dead(name: str, classification: str, story: str, body: Callable[[Content], bytes]) -> Kind:
    return Kind(name, story, body, "dead", classification)


HANGING = _dead("hangs", "timeout", "waits for an answer that never comes", _with(item="import"))
KILLER = _dead("kills its consumer", "lost", "the handler kills the process that talks to the broker", _with(item="script"))

KINDS: tuple[Kind, ...] = (
    _dead("truncated JSON", "invalid", "the sender's disk was full", lambda content: encoded(content)[:-24]),
    _dead(
        "wrong encoding",
        "invalid",
        "Latin-1 where UTF-8 is expected",
        lambda content: json.dumps(content | {"customer": "Zoë"}, ensure_ascii=False).encode("latin-1"),
    ),
    _dead("emoji in ASCII", "permanent", "a label printer that knows ASCII only", _with(address="1 Party Lane 🎉")),
    _dead("missing field", "invalid", "the sender left the quantity out", _without("quantity")),
    _dead("integer overflow", "invalid", "a quantity that fits no 64 bits", _with(quantity=10**20)),
    _dead("too large", "invalid", "more bytes than this app takes", _with(note="very long note " * 400)),
    _dead("deleted record", "permanent", "an item that left the catalogue", _with(item="fax")),
    _dead("bug in the handler", "bug", "guests without a name were forgotten", _with(customer=None)),
    Kind("flaky dependency", "the warehouse hangs up once, then answers", _with(item="lamp"), "done"),
    Kind("rate limit", "the carrier answers 429 with Retry-After", _with(item="piano"), "done"),
    _dead("segfault", "crash", "a native library reads address 0", _with(item="font")),
    _dead("os._exit", "crash", "a library ends the process", _with(item="plugin")),
    _dead("eats memory", "unknown", "far more than a worker may have", _with(item="poster")),
    HANGING,
    Kind("monitoring probe", "the handler says Discard", _with(item="probe"), "discarded"),
    KILLER,
)

FEWEST, MOST = 2 * len(KINDS), 10_000
"""How many messages make a demo."""


class Traffic(NamedTuple):
    """Everything that is published, in order, and which of it is poison. Orders are numbered from 1."""

    bodies: Sequence[bytes]
    poison: Mapping[int, Kind]


def traffic(messages: int, seed: int) -> Traffic:
    """So many orders, with sound ones behind each poisoned one. What hangs comes early, since it takes longest. What kills the
    consumer comes last: otherwise its outage would count as time that others took."""
    draw = random.Random(seed)  # noqa: S311 - the point is that it can be repeated
    kinds = [kind for kind in KINDS if kind not in (HANGING, KILLER)]
    draw.shuffle(kinds)
    kinds.insert(draw.randrange(4), HANGING)
    places = sorted(draw.sample(range(1, messages * 6 // 10), len(kinds)))
    poison = dict(zip(places, kinds, strict=True)) | {messages * 3 // 4: KILLER}
    bodies = []
    for number in range(1, messages + 1):
        content = _order(number, draw)
        bodies.append(poison[number].body(content) if number in poison else encoded(content))
    return Traffic(bodies, poison)


def _order(number: int, draw: random.Random) -> Content:
    return {
        "id": number,
        "customer": draw.choice(CUSTOMERS),
        "item": draw.choice(ITEMS),
        "quantity": draw.randint(1, 9),
        "address": f"{draw.randint(1, 99)} {draw.choice(STREETS)}",
    }


def message_id(number: int) -> str:
    return f"order-{number:04d}"


def number_of(message: str) -> int:
    return int(message.rpartition("-")[2])
