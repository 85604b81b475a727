"""What became of each message that was published?

Each record is confirmed, or fails with an error of its own. Some errors say that the server did not take it. After all others,
above all when the time was over, it may be stored.
"""

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError

from unpoison.brokers.kafka import copies
from unpoison.brokers.kafka.session import Session
from unpoison.brokers.kafka.troubles import DENIED, told
from unpoison.errors import Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import STORED, Published, Refused, without_source

_REFUSALS = {
    **dict.fromkeys(DENIED, Refusal.NOT_PERMITTED),
    KafkaError.MSG_SIZE_TOO_LARGE: Refusal.TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: Refusal.TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE: Refusal.TOO_LARGE,
    KafkaError.INVALID_RECORD: Refusal.UNFIT,
    KafkaError.POLICY_VIOLATION: Refusal.UNFIT,
    KafkaError.UNKNOWN_TOPIC_OR_PART: Refusal.NO_SUCH_SOURCE,
    KafkaError.TOPIC_EXCEPTION: Refusal.NO_SUCH_SOURCE,
    KafkaError._UNKNOWN_TOPIC: Refusal.NO_SUCH_SOURCE,  # noqa: SLF001 - they have no other names
    KafkaError._UNKNOWN_PARTITION: Refusal.NO_SUCH_SOURCE,  # noqa: SLF001
    KafkaError._INVALID_ARG: Refusal.UNFIT,  # noqa: SLF001
}
"""Errors after which a record is certainly not stored. For any other one there may have been an earlier try that was."""


def publish(session: Session, messages: Sequence[Outgoing], ensure: Callable[[str], object]) -> Published:
    refused = without_source(messages, ensure)
    numbers: Sequence[int] = range(len(messages)) if not refused else [n for n in range(len(messages)) if n not in refused]
    names = {source: session.names(source) for source in {messages[n].source for n in numbers}}
    if late := next((messages[n] for n in numbers if messages[n].delay > 0), None):
        names[late.source].must_have_group()
        session.learn_the_time(names[late.source].states)
    now = session.now()
    failed = session.store([copies.outgoing(names[messages[n].source], messages[n], now) for n in numbers])
    if not failed and not refused:
        return STORED
    unknown: dict[int, str] = {}
    for index, error in failed.items():
        number, reason = numbers[index], f"Kafka did not confirm it: {told(error)}."
        if error.code() in _REFUSALS:
            refused[number] = Refused(_REFUSALS[error.code()], reason)
        else:
            unknown[number] = reason
    return Published(refused, unknown)
