"""Have a message wait for its time without holding up others.

It waits as a copy under a subject of its own, beside the retries. Servers from 2.12 on deliver it themselves at its time: a
*schedule*. Older ones take the same flag and never fire, so there it is ours to do: one more consumer on those copies, which
hands each back to the server until its time has come and then moves it on. The source itself is never asked to wait: a
delayed message would hold one of its places, and its count would be forgotten.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from unpoison.brokers.nats import envelope
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.envelope import Arrived, line, place
from unpoison.brokers.nats.names import Names
from unpoison.brokers.nats.subscription import NAK, Subscription
from unpoison.brokers.nats.writing import Copy, No
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.port.copying.ids import unique
from unpoison.port.reading import as_text

MEASURE_AGAIN = 60.0


class Clock:
    """The server's clock, seen from here. Delays go by it: the clocks of our hosts may differ by minutes."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._measured_at: float | None = None

    def now(self, connection: Connection, names: Names) -> float:
        started = time.monotonic()
        if self._measured_at is None or started - self._measured_at > MEASURE_AGAIN:
            told = _told(connection, names)
            self._ahead = told - time.time()
            self._measured_at = started
        return time.time() + self._ahead


def _told(connection: Connection, names: Names) -> float:
    """Newer servers put the time on every answer; with older ones a message is stored, looked at and removed."""
    answer = connection.ask(f"STREAM.INFO.{names.dlq}", what="asking for the time")
    if "ts" in answer:
        return moment(answer["ts"])
    subject = f"{names.starts}.clock-{unique()}"
    connection.request(subject.encode(), b"", "asking for the time")
    message: Any = connection.ask(f"STREAM.MSG.GET.{names.dlq}", {"last_by_subj": subject}, "asking for the time")["message"]
    connection.ask(f"STREAM.MSG.DELETE.{names.dlq}", {"seq": message["seq"], "no_erase": True}, "asking for the time")
    return moment(message["time"])


def moment(text: str) -> float:
    """A time as the server writes it, with nanoseconds."""
    head, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(head).replace(tzinfo=UTC).timestamp() + float(f"0.{rest or 0}")


def text(moment_: float) -> str:
    """A time as the server reads it."""
    return datetime.fromtimestamp(moment_, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


DUE, TARGET = b"x-unpoison-due", b"x-unpoison-target"
AT_ONCE = 100
IDLE = 5.0
SOON = 0.01


def schedule(names: Names, due: float, target: str, *, native: bool) -> tuple[str, list[bytes]]:
    """Subject and headers of a copy that is to be at `target` when its time has come, by the server's clock."""
    subject = f"{names.later}.{unique()}"
    if native:
        at = text(math.ceil(due * 1000) / 1000)
        return subject, [line(b"Nats-Schedule", f"@at {at}"), line(b"Nats-Schedule-Target", target)]
    return subject, [line(DUE, repr(due)), line(TARGET, target)]


class Mover:
    """Moves copies on whose time has come, for servers that do not."""

    def __init__(
        self,
        subscription: Subscription,
        store: Callable[[list[Copy]], dict[int, No]],
        now: Callable[[], float],
        rung: threading.Event,
        targets: Sequence[str],
    ) -> None:
        self._subscription, self._store, self._now, self._rung = subscription, store, now, rung
        self._targets = targets
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unpoison-nats-mover", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._rung.clear()
            moved = 0
            with suppress(UnpoisonError):  # the consumer reports it
                moved = self._move()
            if not moved and not self._ended.is_set():
                self._rung.wait(IDLE)
                self._ended.wait(SOON)  # one that comes alone is often the first of many

    def _move(self) -> int:
        pulled = self._subscription
        pulled.wait(pulled.ask(AT_ONCE))
        arrived = pulled.take(2 * AT_ONCE)
        if not arrived:
            pulled.listen()
            return 0
        now = self._now()
        due = {each.reply: _due(each) for each in arrived}
        ready = [each for each in arrived if due[each.reply] <= now]
        if ready:
            refused = self._store([_moved(each, self._targets) for each in ready])
            stored = [each.reply for number, each in enumerate(ready) if number not in refused]
            pulled.acknowledge(stored)
            if refused:
                raise BrokerUnavailable(f"NATS refused delayed messages: {next(iter(refused.values())).text}.")
        for each in arrived:
            if due[each.reply] > now:
                delay = msgspec.json.encode({"delay": math.ceil((due[each.reply] - now) * 1e9)})
                pulled.send([each.reply], NAK + b" " + delay)
        pulled.leases.forget(due)
        return len(arrived)

    def close(self) -> None:
        self._ended.set()
        self._rung.set()
        self._thread.join()
        with suppress(UnpoisonError):
            self._subscription.cancel()


def _due(arrived: Arrived) -> float:
    """When its time comes, by the server's clock; now if it says nothing that makes sense."""
    with suppress(ValueError):
        due = float(envelope.fields(arrived.block).get(DUE, b"0"))
        return due if math.isfinite(due) else 0.0
    return 0.0


def _moved(arrived: Arrived, targets: Sequence[str]) -> Copy:
    """The same message at its target, without the headers of the way. What names none of ours goes to the first."""
    way = (DUE, TARGET, envelope.MESSAGE_ID)
    lines = [each for each in arrived.block.split(b"\r\n")[1:] if each and not each.startswith(way)]
    lines.append(line(envelope.MESSAGE_ID, place(arrived.reply)))
    target = as_text(envelope.fields(arrived.block).get(TARGET, b""))
    return Copy(target if target in targets else targets[0], envelope.block(lines), arrived.body)
