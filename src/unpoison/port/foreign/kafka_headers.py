"""What do Spring Kafka and Kafka Connect write beside a record that they give up?

Spring's `DeadLetterPublishingRecoverer` writes `kafka_dlt-original-topic` and so on; the one of its retry topics writes the same
without `dlt-`, and `retry_topic-…` beside it. Partitions are ints and offsets longs, big-endian; times of the retry topics are as
many bytes as they need. A record that was given up twice has each place twice: the first is where it came from. Of exceptions the
last counts.

Connect writes text under `__connect.errors.`, each once, and only if `errors.deadletterqueue.context.headers.enable` is set.

Neither touches key or value, so the record is the original one, but for these headers.
"""

from collections.abc import Iterable, Mapping

from unpoison.port.foreign.told import Told, count, from_big_endian, known, long_text, name, number, place, text, trace

Pairs = Iterable[tuple[str, bytes | None]]

_SPRING = ("kafka_dlt-", "kafka_")
_PLACES = ("original-topic", "original-partition", "original-offset", "original-timestamp", "original-timestamp-type")
_OF_PLACE = frozenset((*_PLACES, "original-consumer-group"))
_EXCEPTIONS = ("fqcn", "cause-fqcn", "message", "stacktrace")
_OF_FAILURE = frozenset(f"{of}exception-{what}" for of in ("", "key-") for what in _EXCEPTIONS)
_RETRIES = frozenset(("retry_topic-attempts", "retry_topic-original-timestamp", "retry_topic-backoff-timestamp"))
_ATTEMPT = "kafka_deliveryAttempt"
_CONNECT = "__connect.errors."


def read(headers: Pairs) -> Told | None:
    """What these headers tell; None if neither of the two has written any."""
    pairs = [(name, value or b"") for name, value in headers if name.startswith(("kafka_", "retry_topic-", _CONNECT))]
    if spring := _spring_headers(pairs):
        return _spring(spring)
    connect = {each[len(_CONNECT) :]: value for each, value in reversed(pairs) if each.startswith(_CONNECT)}
    return _connect(connect) if connect else None


def is_told(header: str) -> bool:
    """Whether this header is part of what they tell, and not of the message."""
    return header.startswith(_CONNECT) or header in _RETRIES or header == _ATTEMPT or _of_spring(header) is not None


def _of_spring(header: str) -> str | None:
    """The name without the prefix of either style; None for a header that is the sender's."""
    for prefix in _SPRING:
        found = header[len(prefix) :]
        if header.startswith(prefix) and (found in _OF_PLACE or found in _OF_FAILURE):
            return found
    return None


def _spring_headers(pairs: Iterable[tuple[str, bytes]]) -> Mapping[str, bytes]:
    """By their names without a prefix; empty without any that is only written to a record which failed."""
    found: dict[str, bytes] = {}
    more: dict[str, bytes] = {}
    for header, value in pairs:
        if header in _RETRIES or header == _ATTEMPT:
            more[header] = value
        elif (plain := _of_spring(header)) is not None and (plain not in found or plain in _OF_FAILURE):
            found[plain] = value
    return {**found, **more} if found else {}


def _spring(found: Mapping[str, bytes]) -> Told:
    topic = place(found.get("original-topic"))
    of_key = "" if "exception-fqcn" in found else "key-"
    failure = {each: found.get(f"{of_key}exception-{each}", b"") for each in _EXCEPTIONS}
    return Told(
        rule=f"Spring Kafka dead-lettered it from topic {topic!r}",
        source=topic,
        error_type=name(failure["cause-fqcn"]) or name(failure["fqcn"]),
        error=long_text(failure["message"]),
        traceback=trace(failure["stacktrace"]),
        attempts=_attempts(found),
        original=known(
            {
                "partition": from_big_endian(found.get("original-partition"), 4),
                "offset": from_big_endian(found.get("original-offset"), 8),
                "topic": topic,
                "group": text(found.get("original-consumer-group")),
                "timestamp": from_big_endian(found.get("original-timestamp"), 8),
            }
        ),
    )


def _attempts(found: Mapping[str, bytes]) -> int:
    """Retry topics count the attempt that would come next, in an int or, before 2.8, in a byte."""
    following = from_big_endian(found.get("retry_topic-attempts"), 4, 1)
    return count(from_big_endian(found.get(_ATTEMPT), 4) if following is None else max(0, following - 1))


def _connect(found: Mapping[str, bytes]) -> Told:
    topic, connector, stage = place(found.get("topic")), text(found.get("connector.name")), text(found.get("stage"))
    return Told(
        rule=f"Kafka Connect dead-lettered it in connector {connector!r}, stage {stage!r}",
        source=topic,
        error_type=name(found.get("exception.class.name")),
        error=long_text(found.get("exception.message")),
        traceback=trace(found.get("exception.stacktrace")),
        original=known(
            {
                "partition": number(found.get("partition")),
                "offset": number(found.get("offset")),
                "topic": topic,
                "connector": connector,
                "stage": stage,
                "task": text(found.get("task.id")),
                "class": text(found.get("class.name")),
            }
        ),
    )
