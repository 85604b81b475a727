"""What has a group committed, as somebody sees it who is not in it?

librdkafka has a question of its own for that, which ends the process when the group has just gone to another server
(confluentinc/librdkafka#5040): with every restart of a cluster. A client that names the group and never joins it asks as its
members do, and finds the other server by itself.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from unpoison.brokers.kafka.connecting import RARELY_POLLED

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
