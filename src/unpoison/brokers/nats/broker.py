"""NATS JetStream as a broker.

Retries, releases and dead letters are copies that the server has confirmed before the original is acknowledged, and each
acknowledgement is confirmed too. NATS does not ask who acknowledges. So we only acknowledge what is done or stored elsewhere, and
what we held for longer than the server has promised counts as lost.
"""

from collections.abc import Sequence

from unpoison.brokers.nats import publishing
from unpoison.brokers.nats.client import Client
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.envelope import native
from unpoison.brokers.nats.source import Source
from unpoison.brokers.nats.subscription import Gone
from unpoison.brokers.nats.topology import DurableConsumer, Topic
from unpoison.brokers.nats.url import address
from unpoison.brokers.nats.writing import stored_as
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Capability, Dead, Depth, Finding, Kept, Published, Ring, Settlement
from unpoison.port.copying.leases import LeasedSources
from unpoison.port.copying.settling import Copies, Item, Stored

LOST = (
    "This consumer held messages for longer than NATS waits to hear from it (ack_wait): it was paused or did not reach the "
    "server; or the server was killed and forgot that it had handed them out. Its results are dropped; the messages are "
    "delivered again."
)


class NATSBroker:
    """One user of the server."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.BROWSE
    native = staticmethod(native)

    def __init__(self, url: str) -> None:
        self.sources = LeasedSources(self._source, Copies("NATS", self._store), LOST)
        self.client = Client(address(url), self.sources.wake)
        self._published: set[str] = set()

    def _source(self, name: str) -> Source:
        return Source(name, self.client, self.sources.wake)

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self.client.create, self.client.is_open = create, True
        self.sources.ring = ring or self.sources.ring
        try:
            findings = [finding for source in sources for finding in self.client.topology().ensure(source)]
        except BaseException:
            self.close()
            raise
        self.client.created.clear()
        return findings

    def inherited_fds(self) -> Sequence[int]:
        return ()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        outcome = publishing.publish(self.client, messages)
        if len(outcome.refused) < len(messages):
            self._published |= {message.source for message in messages}
        return outcome

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self.sources.lock:
            if limit <= 0:
                return ()
            self.client.topic(source)
            known = self.sources.to_fetch(source)
            if source in self._published:
                self._published.discard(source)
                known.filled.add(known.work)
            try:
                return known.fetch(limit)
            except Gone as gone:
                self.client.remake(source)
                raise BrokerUnavailable(f"{gone} It was created again: the next try finds it.") from None

    def has_suspect(self, source: str) -> bool:
        with self.sources.lock:
            self.client.topic(source)
            return self.sources.source(source).suspects.has_one()

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self.sources.lock:
            self.client.topic(source)
            known = self.sources.source(source)
            return known.suspects.take(by, known.came_back)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        with self.sources.lock:
            return self.sources.settle(settlement)

    def _store(self, items: Sequence[Item]) -> Stored:
        """Copies of these, for the kit."""
        answers: dict[int, bytes] = {}
        refused = self.client.store([publishing.copy_of(self.client, item) for item in items], answers)
        soon = {item.delivery.source for item in items if isinstance(item, Kept) and not item.after and not item.counters.alone}
        for known in [self.sources.known[source] for source in soon & self.sources.known.keys()]:
            known.filled.add(known.again)
        return Stored(
            {number: f"{no.text} (code {no.code})." for number, no in refused.items()},
            {
                number: f"{item.delivery.source}-{stored_as(answers[number])}"
                for number, item in enumerate(items)
                if isinstance(item, Dead) and number in answers
            },
        )

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self.sources.lock:
            self.sources.extend(deliveries)

    def depth(self, source: str) -> Depth:
        with self.sources.lock:
            return depth(self.client.connection(), self.client.topic(source))

    def close(self) -> None:
        self.sources.close()
        with self.sources.lock:
            self.client.close()


def depth(connection: Connection, topic: Topic) -> Depth:
    """How many messages of a source are where.

    Messages move from the source and from the replays to the retries, and never back: so these are counted last, and all kinds of
    them by the one number that the stream has. Nothing that moves meanwhile can be missed.
    """
    what = "counting messages"
    first = connection.ask_all([_info(topic.work), _info(topic.replays)], what)
    names = topic.names
    again, suspects, retries, letters = connection.ask_all(
        [
            _info(topic.again),
            _info(topic.suspects),
            (f"STREAM.INFO.{names.retries}", None),
            (f"STREAM.INFO.{names.dlq}", {"subjects_filter": names.dead}),
        ],
        what,
    )
    ready = sum(info["num_pending"] for info in first)
    leased = sum(info["num_ack_pending"] for info in first)
    kept = retries["state"]["messages"]
    running = min(kept, again["num_ack_pending"] + suspects["num_ack_pending"])
    waiting = min(kept - running, again["num_pending"] + suspects["num_pending"])
    dead = sum((letters["state"].get("subjects") or {}).values())
    return Depth(ready + waiting, kept - running - waiting, leased + running, dead)


def _info(at: DurableConsumer) -> tuple[str, None]:
    return f"CONSUMER.INFO.{at.stream}.{at.consumer}", None
