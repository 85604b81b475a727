"""What does AMQP alone tell of a source, by asking whether its queues are there?"""

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import NamedTuple

from unpoison.brokers.rabbitmq.connection import ACCESS_REFUSED, Link, Refused
from unpoison.brokers.rabbitmq.doctor import rights
from unpoison.brokers.rabbitmq.topology import NOT_FOUND, dlq_of, lane_of, native_names
from unpoison.brokers.rabbitmq.url import Address
from unpoison.port import findings
from unpoison.port.broker import Finding

NAMES = ("dlq-missing", "queues-missing", "suspects-consumed", "source-missing", "many-dead-letters")

START = "Start a consumer anew, which makes them:\nunpoison run module:app"


class Look(NamedTuple):
    """What the server says when asked for one queue: how much is in it, or why not."""

    ready: int = 0
    consumers: int = 0
    code: int = 0
    said: str = ""


def look(link: Link, queue: str) -> Look:
    """Changes nothing: a queue that is not there is not made."""
    channel = link.channel()
    try:
        answer = channel.ask(lambda pika, done: pika.queue_declare(queue, passive=True, callback=done), "looking").method
        return Look(int(answer.message_count), int(answer.consumer_count))
    except Refused as refused:
        return Look(code=refused.code, said=refused.text)
    finally:
        channel.close()


def findings_of(link: Link, where: Address, source: str) -> Iterator[Finding]:
    """About a source that is there."""
    looks = {name: look(link, name) for name in native_names("", source, consumed=True)}
    forbidden = [name for name in looks if looks[name].code == ACCESS_REFUSED]
    if forbidden:
        yield rights.refused(where, source, looks[forbidden[0]].said)
        return
    yield from _of_missing(source, looks)
    if looks[lane_of(source)].consumers:
        yield Finding(
            "suspects-consumed",
            f"{looks[lane_of(source)].consumers} consumers of another make take messages from {lane_of(source)!r}, which "
            "unpoison pulls one at a time. What they take was under suspicion: it runs there uncounted, and if it kills them, "
            "for ever.",
            f"End them; to see who they are:\nrabbitmqctl list_consumers -p {quote(where.vhost)}",
            loses=True,
        )
    yield from findings.of_dead_letters({source: looks[dlq_of(source)].ready}, where.shown)


def _of_missing(source: str, looks: Mapping[str, Look]) -> Iterator[Finding]:
    missing = [name for name in looks if looks[name].code == NOT_FOUND]
    if dlq_of(source) in missing:
        yield Finding(
            "dlq-missing",
            f"{dlq_of(source)!r} does not exist. A consumer that runs stands still at the first dead letter of {source!r}; one "
            "that starts makes it, and does not start with create=False.",
            START,
        )
    others = [name for name in missing if name != dlq_of(source)]
    if others:
        yield Finding(
            "queues-missing",
            f"Queues that unpoison needs for {source!r} do not exist: {', '.join(others)}. A consumer that runs stands still "
            "when it needs one; one that starts makes them, and does not start with create=False.",
            START,
        )


def missing(where: Address, source: str) -> Finding:
    """Said where nobody can tell which other queues there are."""
    return Finding(
        "source-missing",
        f"There is no queue {source!r} in {where.shown}. Nothing was ever published to it: if another program writes to a name "
        "that differs, its messages wait there and nobody consumes them.",
        "Compare the name in @app.consumer with the one that is published to. The first publish or run makes the source.",
    )


def exclusive(source: str) -> Finding:
    """Said where only the refusal of the server is known."""
    return Finding(
        "queue-exclusive",
        f"Queue {source!r} is exclusive: it belongs to another connection, nobody else can consume it, and it is deleted with "
        f"all its messages when that connection ends.",
        "Have the program that declares it leave out exclusive=true; once its connection has ended, unpoison makes an ordinary "
        "one.",
        loses=True,
    )
