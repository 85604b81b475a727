"""What does one user of the servers ask them, and what if the one who would know has just gone?

Servers agree within seconds on who leads after one of them is gone. Until then a question is asked again, by a client that has
not seen the old order.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.errors import LATE, RARELY_POLLED, Answer, Connecting, answered, lacking, unavailable
from unpoison.brokers.kafka.group_members import Describing, Member
from unpoison.brokers.kafka.names import PARTITIONS, TIERS, Names
from unpoison.brokers.kafka.url import Address

# What has a group committed, as somebody sees it who is not in it?
#
# librdkafka has a question of its own for that, which ends the process when the group has just gone to another server
# (confluentinc/librdkafka#5040): with every restart of a cluster. A client that names the group and never joins it asks as its
# members do, and finds the other server by itself.


MOST = 8
"""Each has a few threads and connections. Somebody who looks at many groups in turn makes some anew."""


class Committed:
    """Asks for one session; from several threads, one after the other."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        # Nobody polls, and what is said to nobody would be kept for ever.
        self._settings = {name: value for name, value in settings.items() if not callable(value)} | {
            "enable.auto.commit": False,
            **RARELY_POLLED,
        }
        self._lock = threading.Lock()
        self._clients: dict[str, Consumer] = {}

    def ask(self, group: str, places: Sequence[TopicPartition], within: float) -> Sequence[TopicPartition]:
        with self._lock:
            found: list[TopicPartition] = self._client(group).committed(list(places), timeout=within)
        if failed := next((each.error for each in found if each.error), None):
            raise KafkaException(failed)
        return found

    def _client(self, group: str) -> Consumer:
        client = self._clients.pop(group, None)
        if client is None:
            while len(self._clients) >= MOST:
                self._drop(next(iter(self._clients)))  # the one that nobody has used for the longest time
            client = Consumer(self._settings | {"group.id": group})
        self._clients[group] = client
        return client

    def _drop(self, group: str) -> None:
        with suppress(KafkaException, RuntimeError):
            self._clients.pop(group).close()

    def close(self) -> None:
        with self._lock:
            for group in list(self._clients):
                self._drop(group)


# (the part that gave this module its question)


ANSWER_WITHIN = 10.0
AGREED_WITHIN = 15.0
"""Seconds until servers have noticed that one of them is gone, 9 by default, and somebody else answers in its place."""
ASK_FOR = 4.0
"""Seconds for one question. Whoever is asked may be the one that has just gone: then another one is asked."""
ADMIN_LASTS = 1.0
"""Seconds for which a client that asks is not replaced: what it does not know the servers do not know either."""

OUTDATED = (
    KafkaError._NOENT,  # noqa: SLF001 - the client has no other name for it: no leader
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    *LATE,
)
UNSETTLED = (
    *OUTDATED,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the client has no other name for it
    KafkaError._TRANSPORT,  # noqa: SLF001 - nor for this: who was asked went before it had answered
    KafkaError._DESTROY,  # noqa: SLF001 - nor for this: somebody else has just found its client outdated
)

Place = tuple[str, int]


class Asking:
    """The part of a session that only looks."""

    def __init__(self, address: Address, name: str) -> None:
        self.address, self.name = address, name
        self.connecting = Connecting(address)
        self._asking = threading.Lock()
        self._admin: AdminClient | None = None
        self._admin_since = 0.0
        self._replaced: list[tuple[float, AdminClient | None]] = []
        # Nothing here refers back to us: clients in a cycle would be ended whenever it is found, perhaps in a forked process,
        # where their threads are not and ending them never returns.
        self._committed = Committed(self.settings())
        self._describing = Describing(self.settings())

    def settings(self, **more: Any) -> dict[str, Any]:
        """For any client. Its own log lines would go to standard error past every logger; what matters we tell ourselves."""
        return {
            "client.id": self.name,
            "log_level": 0,
            # A server may make topics that a client asks about, with its own settings: dead letters would expire after a week.
            "allow.auto.create.topics": False,
            "error_cb": self.connecting.hear,
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.fast.interval.ms": 50,
            **more,
            **self.address.options,
        }

    @property
    def admin(self) -> AdminClient:
        with self._asking:
            if self._admin is None:
                self._admin, self._admin_since = self.connecting.admin(self.settings()), time.monotonic()
            return self._admin

    def cluster(self) -> ClusterMetadata:
        """Servers and topics, as far as this user may see them."""
        return self.connecting.look(self.admin)

    def ends(self, places: Iterable[Place], *, first: bool = False) -> dict[Place, int]:
        """Where these partitions end now, or begin."""
        spec = OffsetSpec.earliest() if first else OffsetSpec.latest()
        asked = {TopicPartition(*place): spec for place in places}
        topics = ", ".join(sorted({repr(place.topic) for place in asked}))
        right = f"Describe on topic {topics}"
        return self._patiently(lambda: self._ends(asked), "asking where partitions end", right) if asked else {}

    def _ends(self, asked: dict[TopicPartition, OffsetSpec]) -> dict[Place, int]:
        try:
            return self._ends_now(asked)
        except KafkaException as error:
            if error.args[0].code() in OUTDATED:
                self._replace_admin()
            raise

    def _ends_now(self, asked: dict[TopicPartition, OffsetSpec]) -> dict[Place, int]:
        answers = self.admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ASK_FOR)
        found = {(each.topic, each.partition): answered(answer, 2 * ASK_FOR).offset for each, answer in answers.items()}
        if any(offset < 0 for offset in found.values()):  # all that the client says of a server which does not answer
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        return found

    def _patiently(self, ask: Callable[[], Answer], what: str, right: str) -> Answer:
        """Ask again while the servers are just agreeing on who answers: for a moment after a topic was made, or a server went."""
        deadline = time.monotonic() + AGREED_WITHIN
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in UNSETTLED or time.monotonic() > deadline:
                    raise unavailable(KafkaException(lacking(error.args[0], right)), what) from None
                time.sleep(0.05)

    def _replace_admin(self) -> None:
        """One that has seen a server go remembers for minutes who led then, and asks nobody else. A new one looks.

        The old one is kept for as long as somebody else may wait for its answer.
        """
        with self._asking:
            now = time.monotonic()
            if now - self._admin_since > ADMIN_LASTS:
                self._replaced = [(at, each) for at, each in self._replaced if now - at < 4 * ASK_FOR]
                self._replaced.append((now, self._admin))
                self._admin = None

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, tuple[int, str | None]]:
        """What a group has committed; what it never did is left out."""
        asked = [TopicPartition(*place) for place in places]
        right = f"Describe or Read on group {group!r}"
        found = self._patiently(lambda: self._committed.ask(group, asked, ASK_FOR), "asking what was committed", right)
        return {(each.topic, each.partition): (each.offset, each.metadata) for each in found if each.offset >= 0}

    def members(self, group: str) -> set[str]:
        """The names under which members of this group have joined."""
        return {member.client for member in self._described(group)}

    def shared_out(self, group: str) -> set[str]:
        """The topics of which another member of this group has a partition."""
        return {topic for member in self._described(group) if member.client != self.name for topic in member.topics}

    def _described(self, group: str) -> Sequence[Member]:
        right = f"Describe or Read on group {group!r}"
        return self._patiently(lambda: self._describing.members(group, ASK_FOR), "asking who is there", right)

    def stop_asking(self) -> None:
        self._committed.close()
        self._describing.close()
        with self._asking:
            self._admin, self._replaced = None, []


# How many messages of a source are where?


DELAYED = frozenset(partition for partition, _ in TIERS)


def unfinished(session: Asking, group: str, places: list[Place]) -> dict[Place, tuple[int, int]]:
    """For each partition: how many messages are not done, and how many of these may have been started."""
    ends, begins = session.ends(places), session.ends(places, first=True)
    committed = session.committed(group, places)
    found = {}
    for place in places:
        offset, metadata = committed.get(place, (begins[place], None))
        state = commit_metadata.read(offset, metadata)
        known = sum(begins[place] <= each < ends[place] for each in state.levels)
        behind = max(0, ends[place] - max(state.top, begins[place]))
        found[place] = (known + behind, len(state.started))
    return found


def counts(session: Asking, names: Names, partitions: int) -> tuple[int, int, int]:
    """Ready, delayed, and held by somebody."""
    main = unfinished(session, names.group, [(names.topic, number) for number in range(partitions)])
    retry = unfinished(session, names.retry_group, [(names.retry, number) for number in range(PARTITIONS)])
    delayed = sum(count for (_, number), (count, _) in retry.items() if number in DELAYED)
    leased = sum(started for _, started in (*main.values(), *retry.values()))
    total = sum(count for count, _ in (*main.values(), *retry.values()))
    return max(0, total - delayed - leased), delayed, min(leased, total)
