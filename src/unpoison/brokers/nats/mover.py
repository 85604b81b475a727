"""Moves copies on whose time has come, for servers that do not: those before 2.12."""

import math
import threading
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from unpoison.brokers.nats import envelope
from unpoison.brokers.nats.client import DUE, TARGET, Client
from unpoison.brokers.nats.envelope import Arrived, line, place
from unpoison.brokers.nats.subscription import NAK, Subscription
from unpoison.brokers.nats.topology import DurableConsumer, Topic
from unpoison.brokers.nats.writing import Copy
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.port.reading import as_text

AT_ONCE = 100
IDLE = 5.0
SOON = 0.01


class Mover:
    """One for each source and consumer."""

    def __init__(self, topic: Topic, later: DurableConsumer, client: Client) -> None:
        self._topic, self._client = topic, client
        self._rung, self._ended = threading.Event(), threading.Event()
        self._subscription = Subscription(*later, client.connection, self._rung.set)
        self._targets = (topic.names.again, topic.names.suspects)
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
        now = self._client.now(self._topic)
        due = {each.reply: _due(each) for each in arrived}
        ready = [each for each in arrived if due[each.reply] <= now]
        if ready:
            refused = self._client.store([_moved(each, self._targets) for each in ready])
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
