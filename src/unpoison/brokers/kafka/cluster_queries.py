"""What does a connection ask the cluster: topics, the ends of partitions, committed offsets, members of groups?

After a server has gone, the others need seconds to elect new leaders. Until then each question is asked again, by an admin client
that does not remember the old leaders. Two questions about groups can end the process that asks them; each has a class here that
asks in another way.
"""

import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConsumerGroupDescription, OffsetSpec, TopicMetadata

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.errors import DENIED, TIMED_OUT, Answer, ConnectionState, result_within, unavailable, with_permission
from unpoison.brokers.kafka.names import PARTITIONS, TIERS, Names
from unpoison.brokers.kafka.settings import RARELY_POLLED, ClientSettings
from unpoison.errors import BrokerUnavailable

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
    KafkaError.OFFSET_NOT_AVAILABLE,  # the new leader does not know yet where the partition ends
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
STARTS_WITHIN = 10.0


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
            client = self._client(group)
            try:
                found: list[TopicPartition] = client.committed(list(places), timeout=within)
            except KafkaException:
                if denied := _denial(client):
                    raise KafkaException(denied) from None
                raise
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


def _denial(client: Consumer) -> KafkaError | None:
    """A client that may not ask for its group's server says that it timed out. The reason is among its events."""
    found = None
    while (event := client.poll(0)) is not None:
        if (error := event.error()) is not None and error.code() in DENIED:
            found = error
    return found


class Member(msgspec.Struct, frozen=True):
    client: str
    """The name under which it has joined."""
    topics: list[str]
    """Those of which it owns a partition."""


class Question(msgspec.Struct):
    group: str
    within: float


class Reply(msgspec.Struct):
    members: list[Member] = []
    refused: tuple[int, str] | None = None


class GroupMembers:
    """Who is in groups, asked in a child process. Threads ask one after the other.

    librdkafka ends its process by a failed assertion when the group's server goes at the wrong moment
    (confluentinc/librdkafka#4605), so with every restart of a cluster. Here that is a question to be asked again.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, group: str, within: float) -> Sequence[Member]:
        with self._lock:
            try:
                reply = self._ask(Question(group, within))
            except (OSError, EOFError, TimeoutError, msgspec.DecodeError):
                why = f"the process that asked has ended with status {self._end()}"
                raise KafkaException(KafkaError(KafkaError._DESTROY, why)) from None  # noqa: SLF001 - it has no other name
        if reply.refused is not None:
            raise KafkaException(KafkaError(*reply.refused))
        return reply.members

    def _ask(self, question: Question) -> Reply:
        process = self._process = self._process or self._start()
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        process.stdin.write(msgspec.json.encode(question) + b"\n")
        process.stdin.flush()
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        if not waiting.poll((2 * question.within + STARTS_WITHIN) * 1000):
            raise TimeoutError
        if not (line := process.stdout.readline()):
            raise EOFError
        return msgspec.json.decode(line, type=Reply)

    def _start(self) -> "subprocess.Popen[bytes]":
        # A session of its own, since Ctrl+C is for us: it ends when we close its input, or are gone.
        command, pipe = [sys.executable, "-m", "unpoison.brokers.kafka.cluster_queries"], subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
        except OSError as error:
            raise BrokerUnavailable(f"No process can be started to ask Kafka who is in a group: {error}.") from None
        assert process.stdin is not None  # noqa: S101
        process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        return process

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        with suppress(OSError):  # a question that it did not read any more
            process.communicate()
        return process.wait()

    def close(self) -> None:
        with self._lock:
            self._end()


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

    def topics(self) -> dict[str, TopicMetadata]:
        return {name: topic for name, topic in self.cluster().topics.items() if topic.partitions}

    def ends(self, places: Iterable[PartitionKey], *, first: bool = False) -> dict[PartitionKey, int]:
        """The end offset of each of these partitions; with `first`, the offset of its first record."""
        spec = OffsetSpec.earliest() if first else OffsetSpec.latest()
        asked = {TopicPartition(*place): spec for place in places}
        right = f"Describe on topic {', '.join(sorted({repr(place.topic) for place in asked}))}"
        return self._patiently(lambda: self._ends(asked), "asking where partitions end", right) if asked else {}

    def _ends(self, asked: dict[TopicPartition, OffsetSpec]) -> dict[PartitionKey, int]:
        within, level = REQUEST_TIMEOUT, IsolationLevel.READ_UNCOMMITTED
        try:
            answers = self.admin.list_offsets(asked, isolation_level=level, request_timeout=within).items()
            found = {(each.topic, each.partition): result_within(answer, 2 * within).offset for each, answer in answers}
            if any(offset < 0 for offset in found.values()):  # the client's only sign that a server did not answer
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        except KafkaException as error:
            if error.args[0].code() in STALE_METADATA:
                self._replace_admin()
            raise
        return found

    def bounds(self, places: Iterable[PartitionKey]) -> dict[PartitionKey, tuple[int, int]]:
        """The offset of the first record of each of these partitions, and its end."""
        places = list(places)
        begins = self.ends(places, first=True)
        return {place: (begins[place], end) for place, end in self.ends(places).items()}

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
        return self._patiently(lambda: self._members.ask(group, REQUEST_TIMEOUT), "asking who is there", right)

    def close(self) -> None:
        self._offsets.close()
        self._members.close()
        with self._asking:
            self._admin, self._replaced = None, []


DELAYED = frozenset(partition for partition, _ in TIERS)


def unfinished(queries: ClusterQueries, group: str, places: list[PartitionKey]) -> dict[PartitionKey, tuple[int, int]]:
    """For each partition: how many messages are not done, and how many of those may have been started."""
    bounds, committed, found = queries.bounds(places), queries.committed(group, places), {}
    for place, (begin, end) in bounds.items():
        state = commit_metadata.decode(*committed.get(place, (begin, None)))
        known = sum(begin <= each < end for each in state.losses)
        found[place] = (known + max(0, end - max(state.top, begin)), len(state.started))
    return found


def message_counts(queries: ClusterQueries, names: Names, partitions: int) -> tuple[int, int, int]:
    """How many messages are ready, delayed, and held by a consumer."""
    main = unfinished(queries, names.group, [(names.topic, number) for number in range(partitions)])
    retry = unfinished(queries, names.retry_group, [(names.retry, number) for number in range(PARTITIONS)])
    delayed = sum(count for (_, number), (count, _) in retry.items() if number in DELAYED)
    leased = sum(started for _, started in (*main.values(), *retry.values()))
    total = sum(count for count, _ in (*main.values(), *retry.values()))
    return max(0, total - delayed - leased), delayed, min(leased, total)


def answer() -> None:
    """In the child process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    admin = AdminClient(msgspec.json.decode(sys.stdin.buffer.readline()))
    for line in sys.stdin.buffer:
        question = msgspec.json.decode(line, type=Question)
        sys.stdout.buffer.write(msgspec.json.encode(_reply(admin, question)) + b"\n")
        sys.stdout.buffer.flush()


def _reply(admin: AdminClient, question: Question) -> Reply:
    found: Future[ConsumerGroupDescription]
    try:
        (found,) = admin.describe_consumer_groups([question.group], request_timeout=question.within).values()
        members = result_within(found, 2 * question.within).members
    except KafkaException as error:
        why: KafkaError = error.args[0]
        return Reply() if why.code() == KafkaError.GROUP_ID_NOT_FOUND else Reply(refused=(why.code(), why.str()))
    return Reply(
        [Member(each.client_id, sorted({place.topic for place in each.assignment.topic_partitions})) for each in members]
    )


if __name__ == "__main__":
    answer()
