"""How is an error of Kafka's told to a person?"""

from confluent_kafka import KafkaError, KafkaException

from bezoar.errors import BrokerUnavailable


def told(error: KafkaError) -> str:
    return f"{error.str()} [{error.name()}]"


def unavailable(error: KafkaException, what: str) -> BrokerUnavailable:
    """For what Kafka refused, or did not answer, while we were doing this."""
    return BrokerUnavailable(f"Kafka did not do it while {what}: {told(error.args[0])}.")
