"""Who is in a group? Asked in a child process, which may crash without harm.

librdkafka ends its process by a failed assertion when the group's server goes at the wrong moment
(confluentinc/librdkafka#4605), so with every restart of a cluster. Here that is a question to be asked again.
"""

import resource
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from unpoison.brokers.kafka.errors import result_within
from unpoison.errors import BrokerUnavailable

STARTS_WITHIN = 10.0


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
    """Asks for one connection. Threads ask one after the other."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def members(self, group: str, within: float) -> Sequence[Member]:
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
        # A group of its own, since Ctrl+C is for us: it ends when we close its input, or are gone.
        command = [sys.executable, "-m", "unpoison.brokers.kafka.group_members"]
        pipe = subprocess.PIPE
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


# In the child process.


def answer() -> None:
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
