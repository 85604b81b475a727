"""What makes a queue lose messages, whatever it is for?"""

from collections.abc import Iterator

from unpoison.brokers.rabbitmq.doctor.fixing import mended, remade
from unpoison.brokers.rabbitmq.doctor.looking import exclusive
from unpoison.brokers.rabbitmq.doctor.seen import Place, Seen
from unpoison.port.broker import Finding

NAMES = (
    "queue-not-durable",
    "queue-auto-delete",
    "queue-exclusive",
    "queue-expires",
    "stream-queue",
    "messages-expire",
    "length-limit-drops",
    "length-limit-refuses",
)


def findings_of(place: Place, seen: Seen) -> Iterator[Finding]:
    yield from _of_lasting(place, seen)
    if seen.kind == "stream":
        yield Finding(
            "stream-queue",
            f"Queue {seen.name!r} is a stream: acknowledging removes nothing from it, and a consumer begins with what comes "
            "next. What was there before is never run, and nothing that was run ever leaves it.",
            "Consume a quorum queue that is bound to the same exchange, under a name of its own; or, if the stream can be spared:"
            f"\n{remade(place, seen).splitlines()[-1]}",
            loses=True,
        )
    elif seen.role != "notes":
        yield from _of_length(place, seen)
        if seen.role in ("source", "lane"):
            yield from _of_age(place, seen)


def _of_lasting(place: Place, seen: Seen) -> Iterator[Finding]:
    if seen.exclusive:
        yield exclusive(seen.name)
        return
    if not seen.durable:
        yield Finding(
            "queue-not-durable",
            f"Queue {seen.name!r} is not durable: a restart of the server deletes it with all its messages.",
            remade(place, seen),
            loses=True,
        )
    if seen.auto_delete:
        yield Finding(
            "queue-auto-delete",
            f"Queue {seen.name!r} deletes itself, with all its messages, when its last consumer leaves: at a deploy, a crash "
            "or a cut connection.",
            remade(place, seen),
            loses=True,
        )
    expires = seen.number("expires")
    if expires is not None:
        yield Finding(
            "queue-expires",
            f"Queue {seen.name!r} is deleted, with all its messages, when nobody has consumed it for {_seconds(expires)} "
            f"({seen.by('expires')}). An outage that long is enough; queues of unpoison that nobody consumes never have a "
            "consumer.",
            mended(place, seen, "expires"),
            loses=True,
        )


def _of_length(place: Place, seen: Seen) -> Iterator[Finding]:
    limits = [(key, value) for key in ("max-length", "max-length-bytes") if (value := seen.number(key)) is not None]
    if not limits or seen.role == "history":
        return
    key, value = limits[0]
    most = f"{value:,} {'messages' if key == 'max-length' else 'bytes'} ({seen.by(key)})"
    refuses = str(seen.text("overflow")).startswith("reject-publish")
    if not refuses:
        what = "its oldest messages, which were confirmed," if seen.role != "dlq" else "the oldest dead letters"
        yield Finding(
            "length-limit-drops",
            f"Queue {seen.name!r} holds at most {most}. When it is full RabbitMQ drops {what} to make room, and says so to "
            "nobody.",
            mended(place, seen, "overflow" if seen.role == "source" else key),
            loses=True,
        )
    elif seen.role != "source":
        yield Finding(
            "length-limit-refuses",
            f"Queue {seen.name!r} holds at most {most} and refuses more. Once it is full, what should go there cannot, and the "
            f"sources stand still; nothing is lost.",
            mended(place, seen, key),
        )


def _of_age(place: Place, seen: Seen) -> Iterator[Finding]:
    ttl, leads = seen.number("message-ttl"), seen.text("dead-letter-exchange")
    meant = place.message_ttl if seen.role == "source" else None
    if ttl is None or (meant is not None and leads is not None and ttl >= meant * 1000):
        return
    end = "is deleted" if leads is None else f"goes to the exchange {leads!r}"
    fix = mended(place, seen, "message-ttl")
    if seen.role == "source" and leads is not None:
        fix = f"If it is meant, add message_ttl={ttl / 1000:.10g} to the URL. If not: {fix[0].lower()}{fix[1:]}"
    yield Finding(
        "messages-expire",
        f"A message that waits in {seen.name!r} for {_seconds(ttl)} ({seen.by('message-ttl')}) {end} without ever being "
        f"started: a backlog, or an outage of the consumers, is enough.",
        fix,
        loses=True,
    )


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:,.10g} s"
