"""What makes a source lose messages, or its consumers wait?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unpoison.brokers.rabbitmq.doctor.fixes import DEFAULT_WAIT, USUAL, enough, has_timeout, mended, policy, remade
from unpoison.brokers.rabbitmq.management import DEFAULT_LIMIT, Place, Seen
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


def of_source(place: Place, seen: Seen) -> Iterator[Finding]:
    if seen.kind == "stream":
        return
    yield from _of_limit(place, seen)
    yield from _of_route(place, seen)
    yield from _of_kind(place, seen)


def _of_limit(place: Place, seen: Seen) -> Iterator[Finding]:
    limit = seen.limit(place.version)
    if limit is None:
        return
    if seen.text("dead-letter-exchange") is None:
        yield Finding(
            "source-limit-deletes",
            f"{seen.name!r} has a delivery limit of {limit} ({seen.by('delivery-limit')}) and no dead-letter exchange: a "
            f"message that came back {counted(limit + 1, 'time')} is deleted. Crashes and deploys of consumers count for every "
            f"message that they had fetched.",
            mended(place, seen, "dead-letter-exchange"),
            loses=True,
        )
    elif limit < LOW:
        yield Finding(
            "source-limit-low",
            f"{seen.name!r} has a delivery limit of {limit} ({seen.by('delivery-limit')}). RabbitMQ counts every message that a "
            f"consumer had fetched when it stopped or died: after {limit + 1} such ends it gives up messages that were never "
            f"started, beside the one that is at fault.",
            mended(place, seen, "delivery-limit"),
            loses=True,
        )


def _of_route(place: Place, seen: Seen) -> Iterator[Finding]:
    exchange = seen.text("dead-letter-exchange")
    if exchange is None:
        return
    key = seen.text("dead-letter-routing-key")
    ends = _ends(place, exchange, key if key is not None else seen.name)
    if ends is not None and seen.name in ends:
        yield Finding(
            "dead-letters-loop",
            f"What RabbitMQ gives up in {seen.name!r} comes back to {seen.name!r}, through the exchange {exchange!r}, with its "
            "count at nought: it goes round for ever.",
            mended(place, seen, "dead-letter-exchange", **_ours(seen)),
            loses=True,
        )
    elif ends is not None and not ends:
        yield Finding(
            "dead-letters-unrouted",
            f"{seen.name!r} hands what RabbitMQ gives up to the exchange {exchange!r}, "
            f"{'which does not exist' if exchange and place.exchange(exchange) is None else 'from which nothing leads on'}: "
            "such a message is deleted, or kept for ever where dead-lettering is at-least-once.",
            f"Make the exchange, and bind a queue to it with the key {key or seen.name!r}. For 'dlx' starting unpoison anew does "
            "it:\n"
            "unpoison run module:app",
            loses=True,
        )
    if seen.kind == "quorum" and not _is_at_least_once(seen):
        yield Finding(
            "at-least-once-off",
            f"{seen.name!r} hands dead letters on at-most-once (dead-letter-strategy {_said(seen, 'dead-letter-strategy')}, "
            f"overflow {_said(seen, 'overflow')}): a message that RabbitMQ itself gives up is lost if its DLQ cannot take it "
            "at that moment.",
            mended(place, seen, "overflow" if _is_dropping(seen) else "dead-letter-strategy"),
        )


def _ends(place: Place, exchange: str, key: str) -> set[str] | None:
    """The queues where a letter with this key arrives. None: that is for the exchange to decide, and not seen here."""
    if exchange == "":
        return {key} & set(place.queues)
    found = place.exchange(exchange)
    if found is None:
        return set()
    leaving = place.bindings(exchange)
    if found["type"] == "direct":
        leaving = [each for each in leaving if each["routing_key"] == key]
    elif found["type"] != "fanout" and leaving:
        return None
    if any(each["destination_type"] != "queue" for each in leaving) or found["arguments"].get("alternate-exchange"):
        return None
    return {each["destination"] for each in leaving}


def _ours(seen: Seen) -> dict[str, str]:
    return {"dead_letter_exchange": "dlx", "dead_letter_routing_key": seen.name}


def _is_at_least_once(seen: Seen) -> bool:
    return seen.text("dead-letter-strategy") == "at-least-once" and seen.text("overflow") == "reject-publish"


def _is_dropping(seen: Seen) -> bool:
    return seen.text("overflow") not in (None, "reject-publish")


def _said(seen: Seen, key: str) -> str:
    return seen.text(key) or "not set"


def _of_kind(place: Place, seen: Seen) -> Iterator[Finding]:
    if seen.kind == "classic":
        yield Finding(
            "classic-queue",
            f"{seen.name!r} is a classic queue: it is on one node only, and when that is killed its latest acknowledgements "
            "may be undone, so that those messages run twice, and every message comes back flagged as if it had been started.",
            f"Where that matters, have a quorum queue. {remade(place, seen)}",
        )
    if seen.arguments.get("x-single-active-consumer"):
        yield Finding(
            "single-active-consumer",
            f"{seen.name!r} has x-single-active-consumer: one consumer gets all messages, every other process that runs unpoison "
            f"stands by idle, and the one cannot be given more at once than it began with.",
            f"Where order does not need it, have a queue without. {remade(place, seen)}",
        )
    if seen.arguments.get("x-max-priority"):
        yield Finding(
            "priority-queue",
            f"{seen.name!r} has {seen.arguments['x-max-priority']} priorities. While messages of a higher one keep coming, "
            "those of a lower one are never started, and their age runs on towards max_age.",
            "See that there are consumers enough, or give each priority a source of its own.",
        )
    if (seen.text("delayed-retry-type") or "disabled") != "disabled":
        yield Finding(
            "delayed-retry-on",
            f"{seen.name!r} has delayed-retry-type {seen.text('delayed-retry-type')}: RabbitMQ holds back what a consumer had "
            "fetched when it died, also what it had never started, and does not count it as waiting. unpoison has its own "
            "backoff.",
            mended(place, seen, "delayed-retry-type"),
        )


# Does RabbitMQ wait for an acknowledgement as long as a handler may run?
#
# What it is told for a queue, or shows of a consumer, is seen. What its own file says is not: then its default is assumed.


TIMEOUTS = ("consumer-timeout-too-short", "consumer-timeout-unseen")

KEY = "consumer-timeout"


def of_timeouts(place: Place, family: Sequence[Seen]) -> Iterator[Finding]:
    """About a source and the queue of its suspects, both of which are held while a handler runs."""
    shown = _shown(place)
    for seen in family:
        if seen.kind == "classic" and place.version >= (4, 3):
            continue  # these have none any more
        waits = [seconds / 1000 for seconds in (shown.get(seen.name), seen.number(KEY)) if seconds is not None]
        if waits and min(waits) < (place.longest or USUAL):
            yield _too_short(place, seen, min(waits))
        elif not waits and (place.longest or 0) > DEFAULT_WAIT:
            yield _unseen(place, seen)


def _shown(place: Place) -> Mapping[str, int]:
    """What the server itself says of consumers that run, by queue. It does so from version 4.3 on."""
    rows: Sequence[Mapping[str, Any]] = place.management.get(f"consumers/{place.management.vhost}") or ()
    told = [(row["queue"]["name"], row["consumer_timeout"]) for row in rows if isinstance(row.get("consumer_timeout"), int)]
    return {name: min(each for of, each in told if of == name) for name, _ in told}


def _too_short(place: Place, seen: Seen, waits: float) -> Finding:
    by = seen.by(KEY) if seen.number(KEY) == waits * 1000 else "as the server says of its consumers"
    return Finding(
        "consumer-timeout-too-short",
        f"RabbitMQ takes messages of {seen.name!r} back when they are not acknowledged within {waits:g} s ({by}), but "
        f"{_runs(place)}. It would take back all that the consumer holds, run them again, and in the end give up a message "
        "that only takes long.",
        mended(place, seen, KEY, consumer_timeout=enough(place)),
        loses=True,
    )


def _unseen(place: Place, seen: Seen) -> Finding:
    look = "rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'"
    if has_timeout(place, seen):
        fix = f"Say it for the queue, where it can be seen:\n{policy(place, seen, consumer_timeout=enough(place))}"
    else:
        fix = (
            f"See what it is, in milliseconds; set it until the next restart, and in rabbitmq.conf (consumer_timeout = "
            f"{enough(place)}):\n{look}\nrabbitmqctl eval 'application:set_env(rabbit, consumer_timeout, {enough(place)}).'"
        )
    return Finding(
        "consumer-timeout-unseen",
        f"RabbitMQ takes messages of {seen.name!r} back when they are not acknowledged within 30 min, unless its own file says "
        f"otherwise, which cannot be seen from here; but {_runs(place)}. What takes longer is run again and given up in the end.",
        fix,
    )


def _runs(place: Place) -> str:
    if place.longest is None:
        return f"a handler may run for {USUAL:g} s unless its consumer says otherwise"
    return "a handler here has no time limit" if place.longest == math.inf else f"a handler here may run for {place.longest:g} s"
