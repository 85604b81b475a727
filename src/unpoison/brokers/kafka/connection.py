"""What does one user of the servers share: its settings, and the way it stores records?

Records are stored by an idempotent producer, and stored means that every replica in sync has them.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from unpoison.brokers.kafka.cluster_queries import ANSWER_WITHIN, Asking
from unpoison.brokers.kafka.envelope import Copy
from unpoison.brokers.kafka.errors import LATE, Connecting, lacking, told, unconfirmed
from unpoison.brokers.kafka.names import Names, check_name
from unpoison.brokers.kafka.url import Address
from unpoison.errors import BrokerUnavailable
from unpoison.model.wording import counted

STORED_WITHIN = 10.0
LOOK_WITHIN = 1.0
LARGEST = 64 * 1024 * 1024
DRAIN = 0.25
"""Of the session's length, the part for which a partition that is to go elsewhere waits for what runs."""


class Session(Asking):
    def __init__(self, address: Address) -> None:
        super().__init__(address, f"unpoison-{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self.create = True
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._clock_offset: float | None = None

    def names(self, source: str) -> Names:
        names = Names(source, self.address.group, self.address.prefix)
        check_name(source, names)
        return names

    def consuming(self, group: str, topic: str) -> dict[str, Any]:
        timeout = int(self.address.session_timeout * 1000)
        own = {"group.instance.id": f"{self.address.instance}.{topic}"} if self.address.instance else {}
        connecting = Connecting(self.address)
        return {
            "max.poll.interval.ms": max(300_000, timeout),
            **self.settings(),
            "error_cb": connecting.hear,
            "connecting": connecting,
            "group.id": group,
            "session.timeout.ms": timeout,
            # A member learns with its next heartbeat that others have come or gone, and they wait for it.
            "heartbeat.interval.ms": max(100, min(1000, timeout // 6)),
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # A partition that is added waits until the request that is on its way comes back.
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 16 * 1024,
            # A queue that was full is looked at again so soon, not after the usual second: it is read empty in less.
            "fetch.queue.backoff.ms": 10,
            "fetch.max.bytes": 16 * 1024 * 1024,
            "message.max.bytes": 16 * 1024 * 1024,
            "give_back": self.address.give_back,
            "drain": DRAIN * self.address.session_timeout,
            **own,
        }

    @property
    def producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                more = {
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 1,
                    "sticky.partitioning.linger.ms": 0,
                    "partitioner": "murmur2_random",
                    "message.max.bytes": LARGEST,
                    "delivery.timeout.ms": int(STORED_WITHIN * 1000),
                }
                self._producer = Producer(self.settings(**more))
                with suppress(KafkaException):
                    # One that is connected gets its number at once; one that is not asks for it a second later.
                    self._producer.list_topics("__consumer_offsets", timeout=ANSWER_WITHIN)
            return self._producer

    def store(self, copies: Sequence[Copy], places: dict[int, tuple[int, int]] | None = None) -> dict[int, KafkaError]:
        """Have all of them confirmed. Returns those that were refused, by their number, and why. `places` is filled with
        partition and offset of the others."""
        places = {} if places is None else places
        refused = self._store_together(copies, places)
        large = [number for number, why in refused.items() if why.code() == KafkaError.MSG_SIZE_TOO_LARGE]
        for number in large if len(copies) > 1 else ():
            # The client sends several as one, and that is what was too large. Each alone may not be.
            del refused[number]
            alone: dict[int, tuple[int, int]] = {}
            if again := self._store_together([copies[number]], alone):
                refused[number] = again[0]
            else:
                places[number] = alone[0]
        return self._explained(copies, refused)

    def _store_together(self, copies: Sequence[Copy], places: dict[int, tuple[int, int]]) -> dict[int, KafkaError]:
        if not copies:
            return {}
        producer, refused, missing = self.producer, dict[int, KafkaError](), set(range(len(copies)))

        def reporter(number: int) -> Callable[[KafkaError | None, Message], None]:
            def report(error: KafkaError | None, record: Message) -> None:
                missing.discard(number)
                if error is not None:
                    refused[number] = lacking(error, f"Write on topic {copies[number].topic!r}")
                    return
                places[number] = (record.partition() or 0, record.offset() or 0)
                if record.timestamp()[0] == 2:  # the server's own time, of a moment ago
                    self._clock_offset = time.time() - record.timestamp()[1] / 1000

            return report

        for number, copy in enumerate(copies):
            if error := self._produce(producer, copy, reporter(number)):
                missing.discard(number)
                refused[number] = error
        deadline = time.monotonic() + 2 * STORED_WITHIN
        while missing and time.monotonic() < deadline:
            producer.poll(0.01)
        refused |= {number: KafkaError(KafkaError._TIMED_OUT) for number in missing}  # noqa: SLF001
        if any(error.fatal() for error in refused.values()):
            with self._lock:
                self._producer = None
        return refused

    def _explained(self, copies: Sequence[Copy], refused: dict[int, KafkaError]) -> dict[int, KafkaError]:
        if not any(error.code() in LATE for error in refused.values()):
            return refused
        try:
            topics = self.producer.list_topics(timeout=LOOK_WITHIN).topics
        except KafkaException:
            return refused  # nobody is there who could say more
        why = {number: (error, copies[number].topic) for number, error in refused.items()}
        return {number: unconfirmed(error, topic, topics.get(topic)) for number, (error, topic) in why.items()}

    def _produce(self, producer: Producer, copy: Copy, report: Callable[..., None]) -> KafkaError | None:
        while True:
            try:
                producer.produce(copy.topic, copy.value, copy.key, copy.partition, headers=list(copy.headers), on_delivery=report)
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                refused: KafkaError = error.args[0]
                return refused
            else:
                return None

    def must_store(self, copies: Sequence[Copy], what: str) -> None:
        if refused := self.store(copies):
            why = told(next(iter(refused.values())))
            many = counted(len(copies), "record")
            raise BrokerUnavailable(f"Kafka did not confirm {len(refused)} of {many} while {what}: {why}.")

    def now(self) -> float:
        """What time it is on the server, as far as is known from what it stored last."""
        return time.time() - (self._clock_offset or 0.0)

    def learn_the_time(self, topic: str) -> None:
        """Once, by storing something there that nobody reads; without an answer our own clock has to do."""
        if self._clock_offset is None:
            self.store([Copy(topic, b"", b"clock", (), 0)])
            self._clock_offset = self._clock_offset or 0.0

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        self.stop_asking()
        if producer is not None:
            producer.flush(1)
