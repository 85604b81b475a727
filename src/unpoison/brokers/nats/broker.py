"""NATS JetStream as a broker.

Retries, releases and dead letters are copies that the server has confirmed before the original is acknowledged, and each
acknowledgement is confirmed too. NATS does not ask who acknowledges. So we only acknowledge what is done or stored elsewhere, and
what we held for longer than the server has promised counts as lost.
"""

import time
from collections.abc import Sequence
from functools import partial

from unpoison.brokers.nats.client import Client, moment
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.copies import copy_of, outgoing
from unpoison.brokers.nats.envelope import native
from unpoison.brokers.nats.source import Source
from unpoison.brokers.nats.subscription import Gone
from unpoison.brokers.nats.topology import SECOND, DurableConsumer, Topic
from unpoison.brokers.nats.url import address
from unpoison.brokers.nats.writing import stored_as, why
from unpoison.model.message import Outgoing
from unpoison.port.broker import Capability, Dead, Depth, Kept, Published
from unpoison.port.copying.leased_broker import LeasedBroker, publish
from unpoison.port.copying.settling import Item, Stored

LOST = (
    "This consumer held messages for longer than NATS waits to hear from it (ack_wait): it was paused or did not reach the "
    "server; or the server was killed and forgot that it had handed them out. Its results are dropped; the messages are "
    "delivered again."
)


class NATSBroker(LeasedBroker[Client, Source]):
    """One user of the server."""

    capabilities = Capability.DURABLE | Capability.SHARED | Capability.BROWSE
    native = staticmethod(native)
    gone = (Gone,)

    def __init__(self, url: str) -> None:
        super().__init__(Client(address(url), self.wake), "NATS", LOST)

    def _source(self, name: str) -> Source:
        return Source(name, self.client, self.wake)

    def _publish(self, messages: Sequence[Outgoing]) -> Published:
        make = partial(outgoing, self.client, self.client.connection().max_payload)
        return publish(self.client, messages, make, self.client.store, why)

    def _store(self, items: Sequence[Item]) -> Stored:
        answers: dict[int, bytes] = {}
        refused = self.client.store([copy_of(self.client, item) for item in items], answers)
        soon = {item.delivery.source for item in items if isinstance(item, Kept) and not item.after and not item.counters.alone}
        for known in [self.known[source] for source in soon & self.known.keys()]:
            known.filled.add(known.again)
        return Stored(
            {number: f"{no.text} (code {no.code})." for number, no in refused.items()},
            {
                number: self.client.topic(item.delivery.source).names.letter_id(stored_as(answers[number]))
                for number, item in enumerate(items)
                if isinstance(item, Dead) and number in answers
            },
        )

    def depth(self, source: str) -> Depth:
        with self._calling(source):
            return depth(self.client.connection(), self.client.topic(source))

    def deletes_after(self, source: str) -> float | None:
        """By `max_age` of the streams in which its messages wait."""
        with self._calling(source):
            return deletes_after(self.client.connection(), self.client.topic(source))

    def oldest(self, source: str) -> float | None:
        with self._calling(source):
            return oldest(self.client.connection(), self.client.topic(source))


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


def deletes_after(connection: Connection, topic: Topic) -> float | None:
    streams = [(f"STREAM.INFO.{name}", None) for name in (topic.work.stream, topic.names.retries)]
    ages = [info["config"].get("max_age", 0) for info in connection.ask_all(streams, "asking how long messages are kept")]
    return min((age / SECOND for age in ages if age > 0), default=None)


def oldest(connection: Connection, topic: Topic) -> float | None:
    """Known where the stream has only messages of this source that are not done. A handler may have the first one already.

    Retries are not among them.
    """
    what = "looking for the oldest message"
    stream, consumer = connection.ask_all([(f"STREAM.INFO.{topic.work.stream}", None), _info(topic.work)], what)
    config = stream["config"]
    if not consumer["num_pending"] or config["retention"] != "workqueue" or config["subjects"] != [topic.names.source]:
        return None
    now = moment(stream["ts"]) if "ts" in stream else time.time()
    return max(0.0, now - moment(stream["state"]["first_ts"]))


def _info(at: DurableConsumer) -> tuple[str, None]:
    return f"CONSUMER.INFO.{at.stream}.{at.consumer}", None
