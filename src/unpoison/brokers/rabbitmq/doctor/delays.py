"""Do messages that wait come back, all of them and at their time?"""

from collections.abc import Iterator

import msgspec

from unpoison.brokers.rabbitmq.doctor.any_queue import findings_of as of_any_queue
from unpoison.brokers.rabbitmq.doctor.fixing import mended, remade, removal
from unpoison.brokers.rabbitmq.doctor.seen import Place, Seen
from unpoison.brokers.rabbitmq.ladder import LEVELS, exchange_of, queue_of, rung, rungs
from unpoison.port.broker import Finding

NAMES = ("delay-queue-differs", "delay-queues-missing", "delay-cut-short")

ARGUMENTS = ("x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-strategy")


def findings_of(place: Place) -> Iterator[Finding]:
    """About the queues that all sources of this virtual host share, as far as they have been needed."""
    for level in range(LEVELS):
        yield from _of_exchange(place, level)
    found: dict[tuple[str, str], list[Finding]] = {}
    for level in range(LEVELS):
        for digit in rungs(level):
            seen = place.queue(rung(level, digit), "delay")
            for each in () if seen is None else _of_rung(place, level, digit, seen):
                found.setdefault((each.name, each.fix), []).append(each)
    for first, *others in found.values():
        more = f" So it is with {len(others)} more of the queues of delays." if others else ""
        yield msgspec.structs.replace(first, problem=first.problem + more)


def _of_exchange(place: Place, level: int) -> Iterator[Finding]:
    name = exchange_of(level)
    found = place.exchange(name)
    if found is None:
        return
    if found["type"] != "headers":
        yield Finding(
            "delay-queue-differs",
            f"The exchange {name!r} is of type {found['type']} and not headers, as unpoison would make it: delayed messages and "
            "retries go the wrong way, or nowhere, and their source stands still.",
            f"Delete it and start the consumers anew, which make it again:\n{removal(place, name)}",
            loses=True,
        )
        return
    bound = {each["destination"] for each in place.bindings(name)}
    wanted = [rung(level, digit) for digit in rungs(level)] + ([exchange_of(level - 1)] if level else [])
    missing = [each for each in wanted if each not in bound]
    if missing:
        yield Finding(
            "delay-queues-missing",
            f"Deleted, or no longer bound to {name!r}: {', '.join(missing)}. A message with that delay cannot be stored, so "
            "its source stands still at the next such retry; what is on its way there waits, and arrives once they are back.",
            "Start the consumers anew: they make the queues at the first delay.\nunpoison run module:app",
        )


def _of_rung(place: Place, level: int, digit: int, seen: Seen) -> Iterator[Finding]:
    should = queue_of(level, digit).arguments
    given = {key: (seen.arguments.get(key), should[key]) for key in ARGUMENTS}
    differs = [f"{key} is {is_!r} and not {ought!r}" for key, (is_, ought) in given.items() if is_ != ought]
    if differs:
        yield Finding(
            "delay-queue-differs",
            f"Queue {seen.name!r} was made by something else: {', '.join(differs)}. Messages that wait there do not come back "
            "at their time, or never.",
            remade(place, seen),
            loses=True,
        )
        return
    if (key := seen.text("dead-letter-routing-key")) is not None:
        yield Finding(
            "delay-queue-differs",
            f"Queue {seen.name!r} sends every message that has waited there to {key!r} and not back to its source "
            f"(dead-letter-routing-key, {_place(seen)}).",
            mended(place, seen, "dead-letter-routing-key"),
            loses=True,
        )
    ttl, meant = seen.number("message-ttl"), should["x-message-ttl"]
    if ttl is not None and ttl < meant:
        yield Finding(
            "delay-cut-short",
            f"Messages wait in {seen.name!r} for {ttl / 1000:g} s and not {meant / 1000:g} s ({seen.by('message-ttl')}): "
            "retries come early, and the backoff does not hold.",
            mended(place, seen, "message-ttl"),
        )
    yield from of_any_queue(place, seen)


def _place(seen: Seen) -> str:
    return "by " + next(iter(seen.places("dead-letter-routing-key")))
