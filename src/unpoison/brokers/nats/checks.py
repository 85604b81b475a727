"""What about an existing stream or consumer loses messages, or is not as we would have made it? Pure: settings in, findings
out."""

from collections.abc import Iterator, Mapping
from typing import Any

from unpoison.errors import ConfigError
from unpoison.port.broker import Finding

SECOND = 1_000_000_000
FEW_PENDING = 256
SHORT_ACK_WAIT = 5.0
NAMES = (
    "stream-in-memory",
    "stream-without-acks",
    "stream-drops-messages",
    "retries-expire",
    "delivery-limit",
    "few-pending",
    "short-ack-wait",
    "consumer-paused",
)


def work_stream(config: Mapping[str, Any], source: str) -> list[Finding]:
    """About a stream that was there before."""
    name = config["name"]
    findings = _in_memory(config)
    if config.get("no_ack"):
        findings.append(
            Finding(
                "stream-without-acks",
                f"Stream {name!r} confirms nothing (no_ack): whoever publishes to {source!r} cannot know what was stored.",
                f"nats stream edit {name} --ack",
                loses=True,
            )
        )
    numbers = ("max_msgs", "max_bytes", "max_msgs_per_subject")
    limits = [f"{limit} {config[limit]}" for limit in numbers if config.get(limit, -1) > 0]
    limits += [f"max_age {config['max_age'] / SECOND:g} s"] if config.get("max_age", 0) > 0 else []
    if limits and (config.get("discard", "old") == "old" or config.get("max_age", 0) > 0):
        findings.append(
            Finding(
                "stream-drops-messages",
                f"Stream {name!r} drops messages that nobody has handled yet once they pass {', '.join(limits)}.",
                f"Have limits far above any backlog, or refuse new messages instead: nats stream edit {name} --discard=new",
            )
        )
    return findings


def own_stream(config: Mapping[str, Any]) -> list[Finding]:
    """About a stream in which retries, delays or dead letters are kept."""
    name = config["name"]
    findings = _in_memory(config)
    limits = [limit for limit in ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject") if config.get(limit, -1) > 0]
    if config.get("max_age", 0) > 0 or (limits and config.get("discard", "old") == "old"):
        findings.append(
            Finding(
                "retries-expire",
                f"Stream {name!r} has {limits[0]} set: retries that wait, or dead letters, are deleted by it without a word.",
                f"nats stream edit {name} --max-age=0 --max-msgs=-1 --max-bytes=-1 --discard=new",
                loses=True,
            )
        )
    return findings


def _in_memory(config: Mapping[str, Any]) -> list[Finding]:
    if config.get("storage", "file") == "file":
        return []
    name = config["name"]
    problem = f"Stream {name!r} is kept in memory: a restart of the server loses everything in it."
    fix = f"The storage of a stream cannot be changed. Make it anew with storage file, after: nats stream backup {name}"
    return [Finding("stream-in-memory", problem, fix, loses=True)]


def consumer(stream: str, config: Mapping[str, Any], subject: str, wanted_wait: float) -> list[Finding]:
    """About a consumer that was there before. Raises ConfigError if we cannot work with it."""
    name = config.get("durable_name") or config.get("name", "")
    what = f"Consumer {name!r} of stream {stream!r}"
    _refuse(config, what, subject)
    edit = f"nats consumer edit {stream} {name}"
    findings = [*_of_limits(config, what, edit), *_of_waiting(config, what, edit, wanted_wait)]
    if config.get("pause_until"):
        findings.append(
            Finding(
                "consumer-paused",
                f"{what} is paused until {config['pause_until']}: nothing is delivered before.",
                f"nats consumer resume {stream} {name}",
            )
        )
    return findings


def _of_limits(config: Mapping[str, Any], what: str, edit: str) -> Iterator[Finding]:
    if config.get("max_deliver", -1) > 0:
        yield Finding(
            "delivery-limit",
            f"{what} has max_deliver {config['max_deliver']}: a message that was handed out so often, also to consumers that "
            f"were killed, stays in the stream and is never delivered again.",
            f"{edit} --max-deliver=-1",
            loses=True,
        )
    if 0 < config.get("max_ack_pending", -1) < FEW_PENDING:
        yield Finding(
            "few-pending",
            f"{what} hands out at most {config['max_ack_pending']} messages at once, to all processes (max_ack_pending).",
            f"{edit} --max-pending=10000",
        )


def _of_waiting(config: Mapping[str, Any], what: str, edit: str, wanted_wait: float) -> Iterator[Finding]:
    ack_wait = config.get("ack_wait", 30 * SECOND) / SECOND
    if ack_wait < min(SHORT_ACK_WAIT, wanted_wait):
        yield Finding(
            "short-ack-wait",
            f"{what} waits {ack_wait:g} s to hear from a consumer (ack_wait): one that is paused for longer loses its "
            f"messages, and they run twice.",
            f"{edit} --wait=30s",
        )


def _refuse(config: Mapping[str, Any], what: str, subject: str) -> None:
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
    raise ConfigError(f"{what} {problem}. It is left as it is: name another one with ?group=NAME, which is then made.")
