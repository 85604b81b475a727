"""What makes a source lose messages, or its consumers wait?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unpoison.brokers.rabbitmq.doctor.fixes import DEFAULT_WAIT, USUAL, enough, has_timeout, mended, policy, remade
from unpoison.brokers.rabbitmq.management import DEFAULT_LIMIT, FoundQueue, VirtualHost
from unpoison.model.wording import counted
from unpoison.port.broker import Finding

SOURCES = (
    "source-limit-deletes",
    "source-limit-low",
    "dead-letters-unrouted",
    "dead-letters-loop",
    "at-least-once-off",
    "classic-queue",
    "single-active-consumer",
    "priority-queue",
    "delayed-retry-on",
)

LOW = DEFAULT_LIMIT
"""Deliveries below which a source gives up messages that were merely waiting in consumers that stopped or died."""


def of_source(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    if queue.kind == "stream":
        return
    yield from _of_limit(vhost, queue)
    yield from _of_route(vhost, queue)
    yield from _of_kind(vhost, queue)


def _of_limit(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    limit = queue.limit(vhost.version)
    if limit is None:
        return
    if queue.text("dead-letter-exchange") is None:
        yield Finding(
            "source-limit-deletes",
            f"{queue.name!r} has a delivery limit of {limit} ({queue.by('delivery-limit')}) and no dead-letter exchange: a "
            f"message that came back {counted(limit + 1, 'time')} is deleted. Crashes and deploys of consumers count for every "
            f"message that they had fetched.",
            mended(vhost, queue, "dead-letter-exchange"),
            loses=True,
        )
    elif limit < LOW:
        yield Finding(
            "source-limit-low",
            f"{queue.name!r} has a delivery limit of {limit} ({queue.by('delivery-limit')}). RabbitMQ counts every message that "
            f"a consumer had fetched when it stopped or died: after {limit + 1} such ends it gives up messages that were never "
            f"started, beside the one that is at fault.",
            mended(vhost, queue, "delivery-limit"),
            loses=True,
        )


def _of_route(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    exchange = queue.text("dead-letter-exchange")
    if exchange is None:
        return
    key = queue.text("dead-letter-routing-key")
    ends = _ends(vhost, exchange, key if key is not None else queue.name)
    if ends is not None and queue.name in ends:
        yield Finding(
            "dead-letters-loop",
            f"What RabbitMQ gives up in {queue.name!r} comes back to {queue.name!r}, through the exchange {exchange!r}, with its "
            "count at nought: it goes round for ever.",
            mended(vhost, queue, "dead-letter-exchange", **_ours(queue)),
            loses=True,
        )
    elif ends is not None and not ends:
        yield Finding(
            "dead-letters-unrouted",
            f"{queue.name!r} hands what RabbitMQ gives up to the exchange {exchange!r}, "
            f"{'which does not exist' if exchange and vhost.exchange(exchange) is None else 'from which nothing leads on'}: "
            "such a message is deleted, or kept for ever where dead-lettering is at-least-once.",
            f"Make the exchange, and bind a queue to it with the key {key or queue.name!r}. To have 'dlx' made, start "
            "unpoison again:\n"
            "unpoison run module:app",
            loses=True,
        )
    if queue.kind == "quorum" and not _is_at_least_once(queue):
        yield Finding(
            "at-least-once-off",
            f"{queue.name!r} hands dead letters on at-most-once (dead-letter-strategy {_said(queue, 'dead-letter-strategy')}, "
            f"overflow {_said(queue, 'overflow')}): a message that RabbitMQ itself gives up is lost if its DLQ cannot take it "
            "at that moment.",
            mended(vhost, queue, "overflow" if _is_dropping(queue) else "dead-letter-strategy"),
        )


def _ends(vhost: VirtualHost, exchange: str, key: str) -> set[str] | None:
    """The queues where a letter with this key arrives. None: that is for the exchange to decide, and not seen here."""
    if exchange == "":
        return {key} & set(vhost.queues)
    found = vhost.exchange(exchange)
    if found is None:
        return set()
    leaving = vhost.bindings(exchange)
    if found["type"] == "direct":
        leaving = [each for each in leaving if each["routing_key"] == key]
    elif found["type"] != "fanout" and leaving:
        return None
    if any(each["destination_type"] != "queue" for each in leaving) or found["arguments"].get("alternate-exchange"):
        return None
    return {each["destination"] for each in leaving}


def _ours(queue: FoundQueue) -> dict[str, str]:
    return {"dead_letter_exchange": "dlx", "dead_letter_routing_key": queue.name}


def _is_at_least_once(queue: FoundQueue) -> bool:
    return queue.text("dead-letter-strategy") == "at-least-once" and queue.text("overflow") == "reject-publish"


def _is_dropping(queue: FoundQueue) -> bool:
    return queue.text("overflow") not in (None, "reject-publish")


def _said(queue: FoundQueue, key: str) -> str:
    return queue.text(key) or "not set"


def _of_kind(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    if queue.kind == "classic":
        yield Finding(
            "classic-queue",
            f"{queue.name!r} is a classic queue: it is on one node only, and when that is killed its latest acknowledgements "
            "may be undone, so that those messages run twice, and every message comes back flagged as if it had been started.",
            f"Where that matters, have a quorum queue. {remade(vhost, queue)}",
        )
    if queue.arguments.get("x-single-active-consumer"):
        yield Finding(
            "single-active-consumer",
            f"{queue.name!r} has x-single-active-consumer: one consumer gets all messages, every other process that runs "
            f"unpoison stands by idle, and the one cannot be given more at once than it began with.",
            f"Where order does not need it, have a queue without. {remade(vhost, queue)}",
        )
    if queue.arguments.get("x-max-priority"):
        yield Finding(
            "priority-queue",
            f"{queue.name!r} has {queue.arguments['x-max-priority']} priorities. While messages of a higher one keep coming, "
            "those of a lower one are never started, and their age runs on towards max_age.",
            "See that there are consumers enough, or give each priority a source of its own.",
        )
    if (queue.text("delayed-retry-type") or "disabled") != "disabled":
        yield Finding(
            "delayed-retry-on",
            f"{queue.name!r} has delayed-retry-type {queue.text('delayed-retry-type')}: RabbitMQ holds back what a consumer had "
            "fetched when it died, also what it had never started, and does not count it as waiting. unpoison has its own "
            "backoff.",
            mended(vhost, queue, "delayed-retry-type"),
        )


# Does RabbitMQ wait for an acknowledgement as long as a handler may run?
#
# What it is told for a queue, or shows of a consumer, is seen. What its own file says is not: then its default is assumed.


TIMEOUTS = ("consumer-timeout-too-short", "consumer-timeout-unseen")

KEY = "consumer-timeout"


def of_timeouts(vhost: VirtualHost, family: Sequence[FoundQueue]) -> Iterator[Finding]:
    """About a source and the queue of its suspects, both of which are held while a handler runs."""
    shown = _shown(vhost)
    for queue in family:
        if queue.kind == "classic" and vhost.version >= (4, 3):
            continue  # these have none any more
        waits = [seconds / 1000 for seconds in (shown.get(queue.name), queue.number(KEY)) if seconds is not None]
        if waits and min(waits) < (vhost.longest or USUAL):
            yield _too_short(vhost, queue, min(waits))
        elif not waits and (vhost.longest or 0) > DEFAULT_WAIT:
            yield _unseen(vhost, queue)


def _shown(vhost: VirtualHost) -> Mapping[str, int]:
    """What the server itself says of consumers that run, by queue. It does so from version 4.3 on."""
    rows: Sequence[Mapping[str, Any]] = vhost.management.get(f"consumers/{vhost.management.vhost}") or ()
    told = [(row["queue"]["name"], row["consumer_timeout"]) for row in rows if isinstance(row.get("consumer_timeout"), int)]
    return {name: min(each for of, each in told if of == name) for name, _ in told}


def _too_short(vhost: VirtualHost, queue: FoundQueue, waits: float) -> Finding:
    by = queue.by(KEY) if queue.number(KEY) == waits * 1000 else "as the server says of its consumers"
    return Finding(
        "consumer-timeout-too-short",
        f"RabbitMQ takes messages of {queue.name!r} back when they are not acknowledged within {waits:g} s ({by}), but "
        f"{_runs(vhost)}. It would take back all that the consumer holds, run them again, and in the end give up a message "
        "that only takes long.",
        mended(vhost, queue, KEY, consumer_timeout=enough(vhost)),
        loses=True,
    )


def _unseen(vhost: VirtualHost, queue: FoundQueue) -> Finding:
    look = "rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'"
    if has_timeout(vhost, queue):
        fix = f"Say it for the queue, where it can be seen:\n{policy(vhost, queue, consumer_timeout=enough(vhost))}"
    else:
        fix = (
            f"See what it is, in milliseconds; set it until the next restart, and in rabbitmq.conf (consumer_timeout = "
            f"{enough(vhost)}):\n{look}\nrabbitmqctl eval 'application:set_env(rabbit, consumer_timeout, {enough(vhost)}).'"
        )
    return Finding(
        "consumer-timeout-unseen",
        f"RabbitMQ takes messages of {queue.name!r} back when they are not acknowledged within 30 min, unless its own file says "
        f"otherwise, which cannot be seen from here; but {_runs(vhost)}. What takes longer is run again and given up in the end.",
        fix,
    )


def _runs(vhost: VirtualHost) -> str:
    if vhost.longest is None:
        return f"a handler may run for {USUAL:g} s unless its consumer says otherwise"
    return "a handler here has no time limit" if vhost.longest == math.inf else f"a handler here may run for {vhost.longest:g} s"
