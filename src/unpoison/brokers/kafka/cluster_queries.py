"""What does a connection ask the cluster: topics, the ends of partitions, committed offsets, members of groups?

After a server has gone, the others need seconds to elect new leaders. Until then each question is asked again, by an admin client
that does not remember the old leaders.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.errors import (
    TIMED_OUT,
    Answer,
    ConnectionState,
    result_within,
    unavailable,
    with_permission,
)
from unpoison.brokers.kafka.group_members import GroupMembers, Member
from unpoison.brokers.kafka.names import PARTITIONS, TIERS, Names
from unpoison.brokers.kafka.settings import RARELY_POLLED, ClientSettings

ANSWER_WITHIN = 10.0
AGREED_WITHIN = 15.0
"""Seconds until the servers have noticed that one of them is gone, 9 by default, and another one answers in its place."""
REQUEST_TIMEOUT = 4.0
"""Seconds for one request. The server that was asked may just have gone; then another one is asked."""
ADMIN_LASTS = 1.0
"""Seconds for which a new admin client is not replaced: what it does not know, the servers do not know either."""

STALE_METADATA = (
    KafkaError._NOENT,  # noqa: SLF001 - the client has no other name for it: no leader
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    *TIMED_OUT,
)
ASKED_AGAIN = (
    *STALE_METADATA,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the client has no other name for it
    KafkaError._TRANSPORT,  # noqa: SLF001 - nor for this: the server went before it answered
    KafkaError._DESTROY,  # noqa: SLF001 - nor for this: another thread has just replaced the client
)

PartitionKey = tuple[str, int]
MAX_CLIENTS = 8
"""Each client has a few threads and connections. Beyond this many, the one that was used longest ago is closed."""


class GroupOffsets:
    """What groups have committed, asked by a client that is not a member.

    librdkafka's own request for that ends the process when the group has just moved to another server
    (confluentinc/librdkafka#5040), so with every restart of a cluster. A client that names the group and never joins it asks as
    the members do, and finds the other server. Threads ask one after the other.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = {**settings, "enable.auto.commit": False, **RARELY_POLLED}
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
            while len(self._clients) >= MAX_CLIENTS:
                self._drop(next(iter(self._clients)))  # the one that was used longest ago
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


class ClusterQueries:
    def __init__(self, name: str, settings: ClientSettings, state: ConnectionState) -> None:
        self._name, self._settings, self._state = name, settings, state
        self._asking = threading.Lock()
        self._admin: AdminClient | None = None
        self._admin_since = 0.0
        self._replaced: list[tuple[float, AdminClient | None]] = []
        # Neither refers back to us. The garbage collector would end clients in a cycle at any moment, perhaps in a forked
        # process, which does not have their threads: there the call never returns.
        self._offsets = GroupOffsets(settings.without_callbacks())
        self._members = GroupMembers(settings.without_callbacks())

    @property
    def admin(self) -> AdminClient:
        with self._asking:
            if self._admin is None:
                self._admin, self._admin_since = self._state.admin(self._settings.common()), time.monotonic()
            return self._admin

    def cluster(self) -> ClusterMetadata:
        """Servers and topics, as far as this user may see them."""
        return self._state.look(self.admin)

    def ends(self, places: Iterable[PartitionKey], *, first: bool = False) -> dict[PartitionKey, int]:
        """The end offset of each of these partitions; with `first`, the offset of its first record."""
        spec = OffsetSpec.earliest() if first else OffsetSpec.latest()
        asked = {TopicPartition(*place): spec for place in places}
        topics = ", ".join(sorted({repr(place.topic) for place in asked}))
        right = f"Describe on topic {topics}"
        return self._patiently(lambda: self._ends(asked), "asking where partitions end", right) if asked else {}

    def _ends(self, asked: dict[TopicPartition, OffsetSpec]) -> dict[PartitionKey, int]:
        try:
            return self._ends_now(asked)
        except KafkaException as error:
            if error.args[0].code() in STALE_METADATA:
                self._replace_admin()
            raise

    def _ends_now(self, asked: dict[TopicPartition, OffsetSpec]) -> dict[PartitionKey, int]:
        answers = self.admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=REQUEST_TIMEOUT)
        found = {
            (each.topic, each.partition): result_within(answer, 2 * REQUEST_TIMEOUT).offset for each, answer in answers.items()
        }
        if any(offset < 0 for offset in found.values()):  # the client's only sign that a server did not answer
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        return found

    def _patiently(self, ask: Callable[[], Answer], what: str, right: str) -> Answer:
        """Ask again while the servers elect a leader: for a moment after a topic was created or a server went."""
        deadline = time.monotonic() + AGREED_WITHIN
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in ASKED_AGAIN or time.monotonic() > deadline:
                    raise unavailable(KafkaException(with_permission(error.args[0], right)), what) from None
                time.sleep(0.05)

    def _replace_admin(self) -> None:
        """An admin client remembers for minutes which server led when one went, and asks no other. A new one looks again.

        The old one is kept for as long as another thread may wait for its answer.
        """
        with self._asking:
            now = time.monotonic()
            if now - self._admin_since > ADMIN_LASTS:
                self._replaced = [(at, each) for at, each in self._replaced if now - at < 4 * REQUEST_TIMEOUT]
                self._replaced.append((now, self._admin))
                self._admin = None

    def committed(self, group: str, places: Iterable[PartitionKey]) -> dict[PartitionKey, tuple[int, str | None]]:
        """Offset and metadata that a group has committed; a partition without a commit is left out."""
        asked = [TopicPartition(*place) for place in places]
        right = f"Describe or Read on group {group!r}"
        found = self._patiently(lambda: self._offsets.ask(group, asked, REQUEST_TIMEOUT), "asking what was committed", right)
        return {(each.topic, each.partition): (each.offset, each.metadata) for each in found if each.offset >= 0}

    def members(self, group: str) -> set[str]:
        """The names under which members of this group have joined."""
        return {member.client for member in self._described(group)}

    def topics_of_others(self, group: str) -> set[str]:
        """The topics of which another member of this group owns a partition."""
        return {topic for member in self._described(group) if member.client != self._name for topic in member.topics}

    def _described(self, group: str) -> Sequence[Member]:
        right = f"Describe or Read on group {group!r}"
        return self._patiently(lambda: self._members.members(group, REQUEST_TIMEOUT), "asking who is there", right)

    def close(self) -> None:
        self._offsets.close()
        self._members.close()
        with self._asking:
            self._admin, self._replaced = None, []


DELAYED = frozenset(partition for partition, _ in TIERS)


def unfinished(queries: ClusterQueries, group: str, places: list[PartitionKey]) -> dict[PartitionKey, tuple[int, int]]:
    """For each partition: how many messages are not done, and how many of those may have been started."""
    ends, begins = queries.ends(places), queries.ends(places, first=True)
    committed = queries.committed(group, places)
    found = {}
    for place in places:
        offset, metadata = committed.get(place, (begins[place], None))
        state = commit_metadata.decode(offset, metadata)
        known = sum(begins[place] <= each < ends[place] for each in state.losses)
        behind = max(0, ends[place] - max(state.top, begins[place]))
        found[place] = (known + behind, len(state.started))
    return found


def message_counts(queries: ClusterQueries, names: Names, partitions: int) -> tuple[int, int, int]:
    """How many messages are ready, delayed, and held by a consumer."""
    main = unfinished(queries, names.group, [(names.topic, number) for number in range(partitions)])
    retry = unfinished(queries, names.retry_group, [(names.retry, number) for number in range(PARTITIONS)])
    delayed = sum(count for (_, number), (count, _) in retry.items() if number in DELAYED)
    leased = sum(started for _, started in (*main.values(), *retry.values()))
    total = sum(count for count, _ in (*main.values(), *retry.values()))
    return max(0, total - delayed - leased), delayed, min(leased, total)
