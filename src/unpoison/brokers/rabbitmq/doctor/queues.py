"""What makes a queue lose messages, whatever it is for?"""

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import NamedTuple

from unpoison.brokers.rabbitmq import provisioning
from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.doctor.fixes import mended, remade, removal
from unpoison.brokers.rabbitmq.errors import ACCESS_REFUSED, NOT_FOUND, Refused
from unpoison.brokers.rabbitmq.management import Family, FoundQueue, VirtualHost
from unpoison.brokers.rabbitmq.names import DLX, dlq_of, native_names, suspects_of
from unpoison.brokers.rabbitmq.url import Address
from unpoison.port import findings
from unpoison.port.broker import Finding

# What does AMQP alone tell of a source, by asking whether its queues are there?


BY_AMQP = ("dlq-missing", "queues-missing", "suspects-consumed", "source-missing", "many-dead-letters")

START = "Start a consumer anew, which makes them:\nunpoison run module:app"


class Look(NamedTuple):
    """What the server says when asked for one queue: how much is in it, or why not."""

    ready: int = 0
    consumers: int = 0
    code: int = 0
    said: str = ""


def look(connection: Connection, queue: str) -> Look:
    """Changes nothing: a queue that is not there is not made."""
    channel = connection.channel()
    try:
        answer = channel.ask(lambda pika, done: pika.queue_declare(queue, passive=True, callback=done), "looking").method
        return Look(int(answer.message_count), int(answer.consumer_count))
    except Refused as refused:
        return Look(code=refused.code, said=refused.text)
    finally:
        channel.close()


def by_amqp(connection: Connection, where: Address, source: str) -> Iterator[Finding]:
    """About a source that is there."""
    looks = {name: look(connection, name) for name in native_names("", source, consumed=True)}
    forbidden = [name for name in looks if looks[name].code == ACCESS_REFUSED]
    if forbidden:
        yield provisioning.refused(where, source, looks[forbidden[0]].said)
        return
    yield from _of_missing(source, looks)
    if looks[suspects_of(source)].consumers:
        yield Finding(
            "suspects-consumed",
            f"{looks[suspects_of(source)].consumers} consumers of another make take messages from {suspects_of(source)!r}, which "
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


# (the part that gave this module its question)


ANY_QUEUE = (
    "queue-not-durable",
    "queue-auto-delete",
    "queue-exclusive",
    "queue-expires",
    "stream-queue",
    "messages-expire",
    "length-limit-drops",
    "length-limit-refuses",
)


def of_any_queue(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    yield from _of_lasting(vhost, queue)
    if queue.kind == "stream":
        yield Finding(
            "stream-queue",
            f"Queue {queue.name!r} is a stream: acknowledging removes nothing from it, and a consumer begins with what comes "
            "next. What was there before is never run, and nothing that was run ever leaves it.",
            "Consume a quorum queue that is bound to the same exchange, under a name of its own; or, if the stream can be spared:"
            f"\n{remade(vhost, queue).splitlines()[-1]}",
            loses=True,
        )
    elif queue.role != "notes":
        yield from _of_length(vhost, queue)
        if queue.role in ("source", "suspects"):
            yield from _of_age(vhost, queue)


def _of_lasting(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    if queue.exclusive:
        yield exclusive(queue.name)
        return
    if not queue.durable:
        yield Finding(
            "queue-not-durable",
            f"Queue {queue.name!r} is not durable: a restart of the server deletes it with all its messages.",
            remade(vhost, queue),
            loses=True,
        )
    if queue.auto_delete:
        yield Finding(
            "queue-auto-delete",
            f"Queue {queue.name!r} deletes itself, with all its messages, when its last consumer leaves: at a deploy, a crash "
            "or a cut connection.",
            remade(vhost, queue),
            loses=True,
        )
    expires = queue.number("expires")
    if expires is not None:
        yield Finding(
            "queue-expires",
            f"Queue {queue.name!r} is deleted, with all its messages, when nobody has consumed it for {_seconds(expires)} "
            f"({queue.by('expires')}). An outage that long is enough; queues of unpoison that nobody consumes never have a "
            "consumer.",
            mended(vhost, queue, "expires"),
            loses=True,
        )


def _of_length(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    limits = [(key, value) for key in ("max-length", "max-length-bytes") if (value := queue.number(key)) is not None]
    if not limits or queue.role == "history":
        return
    key, value = limits[0]
    most = f"{value:,} {'messages' if key == 'max-length' else 'bytes'} ({queue.by(key)})"
    refuses = str(queue.text("overflow")).startswith("reject-publish")
    if not refuses:
        what = "its oldest messages, which were confirmed," if queue.role != "dlq" else "the oldest dead letters"
        yield Finding(
            "length-limit-drops",
            f"Queue {queue.name!r} holds at most {most}. When it is full RabbitMQ drops {what} to make room, and says so to "
            "nobody.",
            mended(vhost, queue, "overflow" if queue.role == "source" else key),
            loses=True,
        )
    elif queue.role != "source":
        yield Finding(
            "length-limit-refuses",
            f"Queue {queue.name!r} holds at most {most} and refuses more. Once it is full, what should go there cannot, and the "
            f"sources stand still; nothing is lost.",
            mended(vhost, queue, key),
        )


def _of_age(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    ttl, leads = queue.number("message-ttl"), queue.text("dead-letter-exchange")
    meant = vhost.message_ttl if queue.role == "source" else None
    if ttl is None or (meant is not None and leads is not None and ttl >= meant * 1000):
        return
    end = "is deleted" if leads is None else f"goes to the exchange {leads!r}"
    fix = mended(vhost, queue, "message-ttl")
    if queue.role == "source" and leads is not None:
        fix = f"If it is meant, add message_ttl={ttl / 1000:.10g} to the URL. If not: {fix[0].lower()}{fix[1:]}"
    yield Finding(
        "messages-expire",
        f"A message that waits in {queue.name!r} for {_seconds(ttl)} ({queue.by('message-ttl')}) {end} without ever being "
        f"started: a backlog, or an outage of the consumers, is enough.",
        fix,
        loses=True,
    )


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:,.10g} s"


# Are messages that must run alone counted, and safe until they have run?


SUSPECTS = ("suspects-not-quorum", "suspects-limit")


def of_suspects(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    if queue.kind == "classic":
        yield Finding(
            "suspects-not-quorum",
            f"{queue.name!r} is a classic queue, which does not count how often a message was started and came back. One that "
            "kills its consumer never reaches its limit: it does so for ever.",
            remade(vhost, queue),
            loses=True,
        )
    limit = queue.limit(vhost.version)
    if limit is not None:
        yield Finding(
            "suspects-limit",
            f"{queue.name!r} has a delivery limit of {limit} ({queue.by('delivery-limit')}): a message whose starts never end is "
            f"deleted there, without a dead letter, unless its own limit of attempts comes first.",
            mended(vhost, queue, "delivery-limit"),
            loses=True,
        )


# Do dead letters arrive, stay, and survive being looked at?


DEAD_LETTERS = ("dlq-unbound", "dlx-differs", "dlq-limit", "dlq-expires", "dlq-sends-back")

START_ONE = "Start a consumer anew, which makes it:\nunpoison run module:app"


def of_exchange(vhost: VirtualHost) -> Iterator[Finding]:
    found = vhost.exchange(DLX)
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
            f"Delete it with its bindings and start all consumers anew, which makes it again:\n{removal(vhost, DLX)}",
        )


def of_letters(vhost: VirtualHost, family: Family) -> Iterator[Finding]:
    if family.dlq is not None:
        yield from _of_binding(vhost, family)
        yield from _of_staying(vhost, family.dlq)
    for queue in (family.dlq, family.history):
        if queue is not None:
            yield from _of_looking(vhost, queue)


def _of_binding(vhost: VirtualHost, family: Family) -> Iterator[Finding]:
    if family.main is None:
        return
    dlq = dlq_of(family.source)
    if not any((each["destination"], each["routing_key"]) == (dlq, family.source) for each in vhost.bindings(DLX)):
        yield Finding(
            "dlq-unbound",
            f"{dlq!r} is not bound to the exchange {DLX!r} with the key {family.source!r}. A dead letter of {family.source!r} "
            "cannot get there: the source stands still at the first one; nothing is lost.",
            START_ONE,
        )


def _of_looking(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    limit = queue.limit(vhost.version)
    if limit is not None:
        yield Finding(
            "dlq-limit",
            f"{queue.name!r} has a delivery limit of {limit} ({queue.by('delivery-limit')}). Letters can only be looked at by "
            f"taking them out and putting them back, which counts: look {limit + 1} has them deleted, with RabbitMQ 4.3 maybe "
            "the first look, since a letter brings its count along.",
            mended(vhost, queue, "delivery-limit"),
            loses=True,
        )


def _of_staying(vhost: VirtualHost, queue: FoundQueue) -> Iterator[Finding]:
    ttl, leads = queue.number("message-ttl"), queue.text("dead-letter-exchange")
    if ttl is None:
        return
    after = f"after {ttl / 1000:,.10g} s ({queue.by('message-ttl')})"
    if leads is not None:
        yield Finding(
            "dlq-sends-back",
            f"{queue.name!r} hands its letters on to the exchange {leads!r} {after}. If that leads back to the source, a "
            "message that always fails goes round for ever; in any case nobody finds it in the DLQ.",
            f"unpoison retries with a backoff of its own. {mended(vhost, queue, 'message-ttl')}",
            loses=True,
        )
    elif vhost.dlq_ttl is None or ttl < vhost.dlq_ttl * 1000:
        said = "The URL has no dlq_ttl" if vhost.dlq_ttl is None else f"The URL has dlq_ttl={vhost.dlq_ttl:g}"
        yield Finding(
            "dlq-expires",
            f"Letters in {queue.name!r} are deleted {after}, whether somebody has looked or not. {said}, so this is not what "
            "was meant.",
            f"If it is meant, add dlq_ttl={ttl / 1000:.10g} to the URL. If not: {_lower(mended(vhost, queue, 'message-ttl'))}",
            loses=True,
        )


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
