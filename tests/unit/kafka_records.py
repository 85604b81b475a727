"""Records as Kafka's client gives them."""

from dataclasses import dataclass

from confluent_kafka import KafkaError


@dataclass
class Read:
    """A record of the first partition of 'orders', or the end of that partition."""

    at: int = 0
    is_end: bool = False

    def topic(self):
        return "orders"

    def partition(self):
        return 0

    def offset(self):
        return self.at

    def error(self):
        return KafkaError(KafkaError._PARTITION_EOF) if self.is_end else None

    def key(self):
        return None

    def value(self):
        return b"body"

    def headers(self):
        return []

    def timestamp(self):
        return (1, 1000)

    def __len__(self):
        return 4
