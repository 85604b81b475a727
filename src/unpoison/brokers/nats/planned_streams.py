"""Which streams and consumers does a source need, with which settings? Pure: names in, configurations out."""

from collections.abc import Iterator
from typing import Any

from unpoison.brokers.nats.names import Names
from unpoison.brokers.nats.url import Address

SCHEDULES_SINCE = (2, 12)
MOST_PENDING = 100_000
"""Messages that may be handed out and unsettled at once, by all processes together."""

SECOND = 1_000_000_000
DUPLICATES = 120 * SECOND
DUPLICATE_LETTERS = 3600 * SECOND


def work(names: Names, address: Address) -> dict[str, Any]:
    """The stream of a source, where no stream takes its subject."""
    return _made(address, names.base, [names.source], retention="workqueue", duplicate_window=DUPLICATES)


def retries(names: Names, address: Address, version: tuple[int, int]) -> dict[str, Any]:
    subjects = [names.again, names.suspects, f"{names.later}.*"]
    # The server takes no schedules in a stream that refuses new messages when it is full; without limits it is never full.
    flags = {"allow_msg_schedules": True, "discard": "old"} if version >= SCHEDULES_SINCE else {}
    return _made(address, names.retries, subjects, retention="workqueue", duplicate_window=DUPLICATES, **flags)


def letters(names: Names, address: Address) -> dict[str, Any]:
    kinds = [f"{names.claim}.*", f"{names.replays}.*", f"{names.discarded}.*", f"unpoison.starts.*.{names.source}.*"]
    return _made(address, names.dlq, [names.dead, *kinds], retention="limits", duplicate_window=DUPLICATE_LETTERS)


def _made(address: Address, name: str, subjects: list[str], **more: Any) -> dict[str, Any]:
    """A stream as we would make it: on disk, and full rather than forgetful."""
    return {"name": name, "subjects": subjects, "storage": "file", "discard": "new", "num_replicas": address.replicas, **more}


def consumer(name: str, subject: str, ack_wait: float) -> dict[str, Any]:
    """A consumer as we would make it. Without a limit of deliveries: the server would stop at it and tell nobody."""
    return {
        "durable_name": name,
        "filter_subject": subject,
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait * SECOND),
        "max_deliver": -1,
        "max_ack_pending": MOST_PENDING,
    }


def own_consumers(names: Names, ack_wait: float, *, has_schedules: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those on the streams that are ours alone, each with its stream."""
    yield names.retries, consumer("again", names.again, ack_wait)
    yield names.retries, consumer("suspects", names.suspects, ack_wait)
    yield names.dlq, consumer(names.group, f"{names.replay}.*", ack_wait) | {"deliver_policy": "new"}
    if not has_schedules:
        yield names.retries, consumer("later", f"{names.later}.*", 30.0) | {"max_ack_pending": -1}
