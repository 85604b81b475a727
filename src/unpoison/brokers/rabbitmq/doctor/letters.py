"""Do dead letters arrive, stay, and survive being looked at?"""

from collections.abc import Iterator

from unpoison.brokers.rabbitmq.doctor.fixing import mended, removal
from unpoison.brokers.rabbitmq.doctor.seen import Family, Place, Seen
from unpoison.brokers.rabbitmq.topology import DLX, dlq_of
from unpoison.port.broker import Finding

NAMES = ("dlq-unbound", "dlx-differs", "dlq-limit", "dlq-expires", "dlq-sends-back")

START = "Start a consumer anew, which makes it:\nunpoison run module:app"


def of_exchange(place: Place) -> Iterator[Finding]:
    found = place.exchange(DLX)
    if found is None:
        return
    differs = [f"its type is {found['type']}"] if found["type"] not in ("direct", "topic") else []
    differs += ["it is not durable"] if not found["durable"] else []
    differs += ["it deletes itself"] if found["auto_delete"] else []
    if differs:
        yield Finding(
            "dlx-differs",
            f"The exchange {DLX!r} is not the durable direct one that unpoison would make: {', and '.join(differs)}. A fanout or "
            "headers exchange gives the letters of one source to the DLQs of all; one that does not last is gone, with its "
            "bindings, after a restart, and sources stand still at their next dead letter.",
            f"Delete it with its bindings and start all consumers anew, which makes it again:\n{removal(place, DLX)}",
        )


def findings_of(place: Place, family: Family) -> Iterator[Finding]:
    if family.dlq is not None:
        yield from _of_binding(place, family)
        yield from _of_staying(place, family.dlq)
    for seen in (family.dlq, family.history):
        if seen is not None:
            yield from _of_looking(place, seen)


def _of_binding(place: Place, family: Family) -> Iterator[Finding]:
    if family.queue is None:
        return
    dlq = dlq_of(family.source)
    if not any((each["destination"], each["routing_key"]) == (dlq, family.source) for each in place.bindings(DLX)):
        yield Finding(
            "dlq-unbound",
            f"{dlq!r} is not bound to the exchange {DLX!r} with the key {family.source!r}. A dead letter of {family.source!r} "
            "cannot get there: the source stands still at the first one; nothing is lost.",
            START,
        )


def _of_looking(place: Place, seen: Seen) -> Iterator[Finding]:
    limit = seen.limit(place.version)
    if limit is not None:
        yield Finding(
            "dlq-limit",
            f"{seen.name!r} has a delivery limit of {limit} ({seen.by('delivery-limit')}). Letters can only be looked at by "
            f"taking them out and putting them back, which counts: look {limit + 1} has them deleted, with RabbitMQ 4.3 maybe "
            "the first look, since a letter brings its count along.",
            mended(place, seen, "delivery-limit"),
            loses=True,
        )


def _of_staying(place: Place, seen: Seen) -> Iterator[Finding]:
    ttl, leads = seen.number("message-ttl"), seen.text("dead-letter-exchange")
    if ttl is None:
        return
    after = f"after {ttl / 1000:,.10g} s ({seen.by('message-ttl')})"
    if leads is not None:
        yield Finding(
            "dlq-sends-back",
            f"{seen.name!r} hands its letters on to the exchange {leads!r} {after}. If that leads back to the source, a "
            "message that always fails goes round for ever; in any case nobody finds it in the DLQ.",
            f"unpoison retries with a backoff of its own. {mended(place, seen, 'message-ttl')}",
            loses=True,
        )
    elif place.dlq_ttl is None or ttl < place.dlq_ttl * 1000:
        said = "The URL has no dlq_ttl" if place.dlq_ttl is None else f"The URL has dlq_ttl={place.dlq_ttl:g}"
        yield Finding(
            "dlq-expires",
            f"Letters in {seen.name!r} are deleted {after}, whether somebody has looked or not. {said}, so this is not what "
            "was meant.",
            f"If it is meant, add dlq_ttl={ttl / 1000:.10g} to the URL. If not: {_lower(mended(place, seen, 'message-ttl'))}",
            loses=True,
        )


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
