"""What can be wrong with a stream or a consumer that was there before. Pure: settings in, findings out."""

from collections.abc import Mapping
from typing import Any

from unpoison.errors import ConfigError
from unpoison.port.broker import Finding
from unpoison.port.findings import Check, examine, loss, names_of

SECOND = 1_000_000_000
FEW_PENDING = 256
SHORT_ACK_WAIT = 5.0
LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject")


class Stream:
    """What the checks need to know about a stream."""

    def __init__(self, config: Mapping[str, Any], source: str = "") -> None:
        self.config, self.source, self.name = config, source, config["name"]
        age = config.get("max_age", 0)
        limits = [f"{limit} {config[limit]}" for limit in LIMITS if config.get(limit, -1) > 0]
        self.limits = ", ".join([*limits, f"max_age {age / SECOND:g} s"] if age > 0 else limits)
        self.drops = bool(age > 0 or (limits and config.get("discard", "old") == "old"))
        """Whether it deletes messages that were not handled."""


class Consumer:
    """What the checks need to know about a durable consumer. `wanted_wait` is the ack_wait that we would have set."""

    def __init__(self, stream: str, config: Mapping[str, Any], wanted_wait: float) -> None:
        self.stream, self.config, self.wanted_wait = stream, config, wanted_wait
        self.name = config.get("durable_name") or config.get("name", "")
        self.shown = f"Consumer {self.name!r} of stream {stream!r}"
        self.ack_wait = config.get("ack_wait", 30 * SECOND) / SECOND


STREAM_IN_MEMORY = loss(
    "stream-in-memory",
    lambda stream: stream.config.get("storage", "file") != "file",
    "Stream {of.name!r} is kept in memory: a restart of the server loses everything in it.",
    "The storage of a stream cannot be changed. Create it again with storage file, after: nats stream backup {of.name}",
)
OF_WORK_STREAMS = (
    STREAM_IN_MEMORY,
    loss(
        "stream-without-acks",
        lambda stream: bool(stream.config.get("no_ack")),
        "Stream {of.name!r} confirms nothing (no_ack): a publisher to {of.source!r} cannot know what was stored.",
        "nats stream edit {of.name} --ack",
    ),
    Check(
        "stream-drops-messages",
        lambda stream: stream.drops,
        "Stream {of.name!r} drops messages that were not handled yet once they pass {of.limits}.",
        "Have limits far above any backlog, or refuse new messages instead: nats stream edit {of.name} --discard=new",
    ),
)
OF_OWN_STREAMS = (
    STREAM_IN_MEMORY,
    loss(
        "retries-expire",
        lambda stream: stream.drops,
        "Stream {of.name!r} has {of.limits} set: retries that wait, or dead letters, are deleted by it without a word.",
        "nats stream edit {of.name} --max-age=0 --max-msgs=-1 --max-bytes=-1 --discard=new",
    ),
)
OF_CONSUMERS = (
    loss(
        "delivery-limit",
        lambda consumer: consumer.config.get("max_deliver", -1) > 0,
        "{of.shown} has max_deliver {of.config[max_deliver]}: a message that was handed out so often, also to consumers that "
        "were killed, stays in the stream and is never delivered again.",
        "nats consumer edit {of.stream} {of.name} --max-deliver=-1",
    ),
    Check(
        "few-pending",
        lambda consumer: 0 < consumer.config.get("max_ack_pending", -1) < FEW_PENDING,
        "{of.shown} hands out at most {of.config[max_ack_pending]} messages at once, to all processes (max_ack_pending).",
        "nats consumer edit {of.stream} {of.name} --max-pending=10000",
    ),
    Check(
        "short-ack-wait",
        lambda consumer: consumer.ack_wait < min(SHORT_ACK_WAIT, consumer.wanted_wait),
        "{of.shown} waits {of.ack_wait:g} s to hear from a consumer (ack_wait): one that is paused for longer loses its "
        "messages, and they run twice.",
        "nats consumer edit {of.stream} {of.name} --wait=30s",
    ),
    Check(
        "consumer-paused",
        lambda consumer: bool(consumer.config.get("pause_until")),
        "{of.shown} is paused until {of.config[pause_until]}: nothing is delivered before.",
        "nats consumer resume {of.stream} {of.name}",
    ),
)
NAMES = names_of(OF_WORK_STREAMS, OF_OWN_STREAMS, OF_CONSUMERS)


def consumer(stream: str, config: Mapping[str, Any], subject: str, wanted_wait: float) -> list[Finding]:
    """About a durable consumer. Raises ConfigError if we cannot work with it."""
    found = Consumer(stream, config, wanted_wait)
    _refuse(found, subject)
    return examine(OF_CONSUMERS, found)


def _refuse(consumer: Consumer, subject: str) -> None:
    config = consumer.config
    filters = [each for each in (config.get("filter_subjects") or [config.get("filter_subject", "")]) if each]
    if config.get("deliver_subject"):
        problem = f"pushes to {config['deliver_subject']!r}, and unpoison pulls"
    elif config.get("ack_policy") != "explicit":
        problem = f"has ack_policy {config.get('ack_policy')!r}: one acknowledgement would take others with it, or none is kept"
    elif config.get("headers_only"):
        problem = "delivers headers only, so that every body would be empty"
    elif filters and filters != [subject]:
        problem = f"takes {', '.join(filters)}, and {subject!r} is wanted"
    else:
        return
    raise ConfigError(
        f"{consumer.shown} {problem}. It is left as it is: name another one with ?group=NAME, which is then created."
    )
