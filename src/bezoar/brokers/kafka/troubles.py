"""How is an error of Kafka's told to a person?"""

from confluent_kafka import KafkaError, KafkaException

from bezoar.errors import BrokerUnavailable

DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


def told(error: KafkaError) -> str:
    return f"{error.str()} [{error.name()}]"


def lacking(error: KafkaError, right: str) -> KafkaError:
    """The same error; one about permissions says which is needed, in the words of kafka-acls.sh. Kafka does not."""
    if error.code() not in DENIED:
        return error
    return KafkaError(error.code(), f"this user needs {right}", error.fatal(), error.retriable())


def is_final(error: KafkaError) -> bool:
    """Whether the client that met it does nothing any more."""
    return error.fatal() or error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)  # noqa: SLF001 - it has no other name


def unavailable(error: KafkaException, what: str) -> BrokerUnavailable:
    """For what Kafka refused, or did not answer, while we were doing this."""
    return BrokerUnavailable(f"Kafka did not do it while {what}: {told(error.args[0])}.")
