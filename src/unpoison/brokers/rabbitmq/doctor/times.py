"""Does RabbitMQ wait for an acknowledgement as long as a handler may run?

What it is told for a queue, or shows of a consumer, is seen. What its own file says is not: then its default is assumed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unpoison.brokers.rabbitmq.doctor.fixing import DEFAULT_WAIT, USUAL, enough, has_timeout, mended, policy
from unpoison.brokers.rabbitmq.doctor.seen import Place, Seen
from unpoison.port.broker import Finding

NAMES = ("consumer-timeout-too-short", "consumer-timeout-unseen")

KEY = "consumer-timeout"


def findings_of(place: Place, family: Sequence[Seen]) -> Iterator[Finding]:
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
