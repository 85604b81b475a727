"""Are messages that must run alone counted, and safe until they have run?"""

from collections.abc import Iterator

from unpoison.brokers.rabbitmq.doctor.fixing import mended, remade
from unpoison.brokers.rabbitmq.doctor.seen import Place, Seen
from unpoison.port.broker import Finding

NAMES = ("suspects-not-quorum", "suspects-limit")


def findings_of(place: Place, seen: Seen) -> Iterator[Finding]:
    if seen.kind == "classic":
        yield Finding(
            "suspects-not-quorum",
            f"{seen.name!r} is a classic queue, which does not count how often a message was started and came back. One that "
            "kills its consumer never reaches its limit: it does so for ever.",
            remade(place, seen),
            loses=True,
        )
    limit = seen.limit(place.version)
    if limit is not None:
        yield Finding(
            "suspects-limit",
            f"{seen.name!r} has a delivery limit of {limit} ({seen.by('delivery-limit')}): a message whose starts never end is "
            f"deleted there, without a dead letter, unless its own limit of attempts comes first.",
            mended(place, seen, "delivery-limit"),
            loses=True,
        )
