"""How do errors of Kafka read, and why does no server answer?"""

import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata

from unpoison.brokers.kafka.url import Address
from unpoison.errors import BrokerUnavailable, ConfigError, Refusal
from unpoison.port.broker import Refused
from unpoison.port.broker_url import masked_text

Answer = TypeVar("Answer")

DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)

REFUSALS = {
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
"""Errors after which a record is certainly not stored. After any other, above all after a timeout, it may be."""

TIMED_OUT = (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT)  # noqa: SLF001 - they have no other names


def refused_and_unknown(failed: Mapping[int, KafkaError]) -> tuple[dict[int, Refused], dict[int, str]]:
    """What these errors of records that were to be stored mean."""
    refused, unknown = dict[int, Refused](), dict[int, str]()
    for number, error in failed.items():
        reason = f"Kafka did not confirm it: {error_text(error)}."
        if error.code() in REFUSALS:
            refused[number] = Refused(REFUSALS[error.code()], reason)
        else:
            unknown[number] = reason
    return refused, unknown


def result_within(answer: "Future[Answer]", within: float) -> Answer:
    """The answer to a request. No answer in time is a KafkaException like any other."""
    try:
        return answer.result(within)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001


def error_text(error: KafkaError) -> str:
    return f"{masked_text(error.str())} [{error.name()}]"


def with_permission(error: KafkaError, right: str) -> KafkaError:
    """The same error; one about permissions names the one that is needed, in the words of kafka-acls.sh. Kafka does not."""
    if error.code() not in DENIED:
        return error
    return KafkaError(error.code(), f"this user needs {right}", error.fatal(), error.retriable())


def is_final(error: KafkaError) -> bool:
    """Whether the client does nothing any more after it."""
    return error.fatal() or error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)  # noqa: SLF001 - it has no other name


def unavailable(error: KafkaException, what: str) -> BrokerUnavailable:
    """For a request that Kafka refused or did not answer."""
    return BrokerUnavailable(f"Kafka failed while {what}: {error_text(error.args[0])}.")


def explain_timeout(error: KafkaError, name: str, topic: TopicMetadata | None) -> KafkaError:
    """The same error; one that only says "timed out" says what was in the way, as far as the servers know it."""
    if error.code() not in TIMED_OUT:
        return error
    if topic is None:
        return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"there is no topic {name!r}: it was deleted")
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


LOOKS = (0.5, 1.0, 8.5)
"""Seconds to wait for an answer. After each, the client's own errors are looked at."""

# The client has no other names for these.
REFUSED_LOGIN, REFUSED_TLS = REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL)  # noqa: SLF001
UNREACHABLE = (KafkaError._TRANSPORT, KafkaError._RESOLVE)  # noqa: SLF001
ALL_DOWN = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
SILENCE = (*UNREACHABLE, ALL_DOWN, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE)  # noqa: SLF001
GONE_FOR = 10.0
"""Seconds without any server after which `check` raises. It raises at once for a refused login."""


class ConnectionState:
    """What the clients report about their connections.

    A client connects again and again by itself, and a request only times out. The cause, such as a refused password or
    certificate, goes to the client's error callback. So we listen there, and do not wait for an answer that will not come.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._heard: dict[int, KafkaError] = {}
        self._gone_since: float | None = None

    def hear(self, error: KafkaError) -> None:
        """Called by every client for its errors, whatever it is doing."""
        self._heard[error.code()] = error
        if error.code() in (ALL_DOWN, *REFUSED):
            self._gone_since = self._gone_since or time.monotonic()

    @property
    def is_doubtful(self) -> bool:
        """Whether all servers may be gone. A client says when they go, and not when they are back."""
        return self._gone_since is not None

    def answered(self) -> None:
        """A server is there."""
        self._heard, self._gone_since = {}, None

    def check(self) -> None:
        """Raise if no server has been there for too long: a consumer would wait for messages without knowing why."""
        since, heard = self._gone_since, self._heard
        if since is None:
            return
        if refused := self._refused():
            raise refused
        if time.monotonic() - since > GONE_FOR:
            why = next((heard[code] for code in (*UNREACHABLE, ALL_DOWN) if code in heard), None)
            text = f": {error_text(why)}" if why else ""
            raise BrokerUnavailable(f"No Kafka server at {self._address.shown} has answered for {GONE_FOR:g} s{text}.")

    def admin(self, settings: dict[str, Any]) -> AdminClient:
        try:
            return AdminClient(settings)
        except KafkaException as error:
            raise ConfigError(
                f"{self._address.shown!r} has an option that the Kafka client refuses: {error_text(error.args[0])}. Options with "
                f"a dot in their names go to librdkafka, which lists them in its CONFIGURATION.md."
            ) from None

    def look(self, admin: AdminClient) -> ClusterMetadata:
        """Servers and topics, as far as this user may see them."""
        self.answered()
        for number, wait in enumerate(LOOKS):
            try:
                return admin.list_topics(timeout=wait)
            except KafkaException as error:
                admin.poll(0)
                if self._is_hopeless(number) or error.args[0].code() not in SILENCE or number == len(LOOKS) - 1:
                    raise self._unavailable(error.args[0]) from None
        raise AssertionError("the last look returns or raises")

    def _is_hopeless(self, number: int) -> bool:
        """Whether a server refuses us, or after a second look still none is there."""
        heard = self._heard
        return any(code in heard for code in REFUSED) or (
            number > 0 and ALL_DOWN in heard and any(code in heard for code in UNREACHABLE)
        )

    def _unavailable(self, error: KafkaError) -> BrokerUnavailable:
        shown, heard = self._address.shown, self._heard
        if refused := self._refused():
            return refused
        found = next((heard[code] for code in UNREACHABLE if code in heard), None)
        text = f"Kafka failed while looking for topics at {shown}: {error_text(found or error)}."
        if found is None and "security.protocol" not in self._address.options:
            text += " If it requires TLS or a login, it closes other connections without an error: "
            text += "use kafka+ssl:// and user:password@host."
        return BrokerUnavailable(text)

    def _refused(self) -> BrokerUnavailable | None:
        shown, heard = self._address.shown, self._heard
        if REFUSED_LOGIN in heard:
            return BrokerUnavailable(
                f"Kafka at {shown} refuses the login: {_short_text(heard[REFUSED_LOGIN])}. Check the user, the password and "
                f"sasl.mechanism in the URL."
            )
        if REFUSED_TLS in heard:
            return BrokerUnavailable(f"TLS with Kafka at {shown} failed: {_short_text(heard[REFUSED_TLS])}.")
        return None


def _short_text(error: KafkaError) -> str:
    """Without the address, which the message has already, and how long it took."""
    text = re.sub(r"^\S+/(?:bootstrap|\d+): | \(after \d+ms in state \w+\)$", "", error.str())
    return f"{text} [{error.name()}]"
