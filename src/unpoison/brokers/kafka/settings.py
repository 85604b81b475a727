"""How is each Kafka client set up?

Options from the URL override ours, except where a promise depends on ours.
"""

from typing import Any

import msgspec

from unpoison.brokers.kafka.errors import ConnectionState
from unpoison.brokers.kafka.url import Address

STORED_WITHIN = 10.0
"""Seconds within which the servers confirm a record."""
LARGEST_RECORD = 64 * 1024 * 1024
FETCH_BYTES = 16 * 1024 * 1024
READ_AHEAD = 16 * 1024
"""KiB that a client reads ahead at most. Its own default takes four times as much memory."""
DRAIN = 0.25
"""The fraction of the session timeout that a revoked partition waits for its running messages."""
RARELY_POLLED = {"max.poll.interval.ms": 86_400_000}
"""For a client that handles no messages: it may go for a day without a poll."""


class MemberSettings(msgspec.Struct, frozen=True):
    """How one member of a consumer group works. `client` goes to the Kafka client; the rest is ours."""

    group: str
    client: dict[str, Any]
    state: ConnectionState
    session_timeout: float
    drain: float
    """Seconds that a revoked partition waits for its running messages."""
    give_back: float
    """Seconds without a fetch after which messages that wait here are left to other consumers."""


class ClientSettings:
    """The settings of all clients of one connection."""

    def __init__(self, address: Address, name: str, state: ConnectionState) -> None:
        self._address, self._name, self._state = address, name, state

    def common(self, **more: Any) -> dict[str, Any]:
        """For any client. Its own log lines would bypass every logger and go to standard error, so they are off."""
        return {
            "client.id": self._name,
            "log_level": 0,
            # Else a server creates topics that a client asks about, with its own settings: dead letters would expire in a week.
            "allow.auto.create.topics": False,
            "error_cb": self._state.hear,
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.fast.interval.ms": 50,
            **more,
            **self._address.options,
        }

    def without_callbacks(self) -> dict[str, Any]:
        """For a client that nobody polls: it would keep every callback for ever."""
        return {name: value for name, value in self.common().items() if not callable(value)}

    def producer(self) -> dict[str, Any]:
        more = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "sticky.partitioning.linger.ms": 0,
            "partitioner": "murmur2_random",
            "message.max.bytes": LARGEST_RECORD,
            "delivery.timeout.ms": int(STORED_WITHIN * 1000),
        }
        return self.common(**more)

    def reader(self, group: str) -> dict[str, Any]:
        """For a client that reads stretches of topics and never joins its group."""
        more = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": READ_AHEAD,
            "fetch.queue.backoff.ms": 5,  # the default pauses for a second whenever the read-ahead queue was full
        }
        return self.common(**more) | {"auto.offset.reset": "earliest"} | RARELY_POLLED

    def committer(self, group: str) -> dict[str, Any]:
        """For a client that commits for a group without joining it."""
        return self.common() | RARELY_POLLED | {"group.id": group, "enable.auto.commit": False}

    def operator(self, group: str, topic: str) -> dict[str, Any]:
        """For an operator, who is the only member of a group and reads nothing."""
        client = self.member(group, topic).client | RARELY_POLLED
        client.pop("group.instance.id", None)
        return client

    def member(self, group: str, topic: str) -> MemberSettings:
        """For a consumer that shares the topic with the rest of its group."""
        address, state = self._address, ConnectionState(self._address)
        timeout = int(address.session_timeout * 1000)
        client = {
            "max.poll.interval.ms": max(300_000, timeout),
            **self.common(),
            "error_cb": state.hear,
            "group.id": group,
            "session.timeout.ms": timeout,
            # A member learns of a rebalance with its next heartbeat, and all the others wait for it.
            "heartbeat.interval.ms": max(100, min(1000, timeout // 6)),
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # A partition that is added waits until the fetch that is on its way comes back.
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": READ_AHEAD,
            # How soon to fetch again after the queue was full. It is emptied in less than the default of a second.
            "fetch.queue.backoff.ms": 10,
            "fetch.max.bytes": FETCH_BYTES,
            "message.max.bytes": FETCH_BYTES,
        }
        if address.instance:
            client["group.instance.id"] = f"{address.instance}.{topic}"
        return MemberSettings(group, client, state, address.session_timeout, DRAIN * address.session_timeout, address.give_back)
