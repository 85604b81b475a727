"""How is an error of Kafka's told to a person?"""

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import TopicMetadata

from unpoison.errors import BrokerUnavailable
from unpoison.port.broker_url import masked_text

Answer = TypeVar("Answer")

DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)

LATE = (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT)  # noqa: SLF001 - they have no other names


def answered(answer: "Future[Answer]", within: float) -> Answer:
    """The answer to a question; none in time is an error of Kafka's like any other."""
    try:
        return answer.result(within)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001


def told(error: KafkaError) -> str:
    return f"{masked_text(error.str())} [{error.name()}]"


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


def unconfirmed(error: KafkaError, name: str, topic: TopicMetadata | None) -> KafkaError:
    """The same error; one that says only that the time is over says what was in the way, as far as the servers know it."""
    if error.code() not in LATE:
        return error
    if topic is None:
        return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"there is no topic {name!r}: somebody has deleted it")
    if not topic.partitions:
        return error
    worst = min(topic.partitions.values(), key=lambda each: (each.leader >= 0, len(each.isrs) - len(each.replicas)))
    where = f"partition {worst.id} of {name!r}"
    if worst.leader < 0:
        why = f"no server leads {where}, which is on servers {', '.join(map(str, worst.replicas))}: one of them must come back"
    elif len(worst.isrs) < len(worst.replicas):
        why = (
            f"{where} has {len(worst.isrs)} of its {len(worst.replicas)} copies in sync, and with less than min.insync.replicas "
            f"Kafka stores nothing: more servers must come back"
        )
    else:
        return error
    return KafkaError(error.code(), f"{error.str()}; {why}", error.fatal(), error.retriable())
