"""What about the queues of a source loses messages, or holds them up? One table of checks for each kind of queue."""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from unpoison.brokers.rabbitmq.doctor.queue_facts import DEFAULT_WAIT, START, USUAL, QueueFacts, TimeoutFacts
from unpoison.brokers.rabbitmq.management import DEFAULT_LIMIT, VirtualHost
from unpoison.brokers.rabbitmq.names import DLX, dlq_of
from unpoison.port.broker import Finding
from unpoison.port.findings import Check, examine, loss

LOW = DEFAULT_LIMIT
"""Deliveries below which a source gives up messages that were merely waiting in consumers that stopped or died."""

ANY_QUEUE = (
    loss(
        "queue-exclusive",
        lambda of: of.queue.exclusive,
        "Queue {of.name!r} is exclusive: it belongs to another connection, nobody else can consume it, and it is deleted with "
        "all its messages when that connection ends.",
        "Have the program that declares it leave out exclusive=true. Once its connection has ended, unpoison creates an ordinary "
        "queue.",
    ),
    loss(
        "queue-not-durable",
        lambda of: not of.queue.durable and not of.queue.exclusive,
        "Queue {of.name!r} is not durable: a restart of the server deletes it with all its messages.",
        "{of.remade}",
    ),
    loss(
        "queue-auto-delete",
        lambda of: of.queue.auto_delete and not of.queue.exclusive,
        "Queue {of.name!r} deletes itself, with all its messages, when its last consumer leaves: at a deploy, a crash or a cut "
        "connection.",
        "{of.remade}",
    ),
    loss(
        "queue-expires",
        lambda of: of.expires is not None and not of.queue.exclusive,
        "Queue {of.name!r} is deleted, with all its messages, when nobody has consumed it for {of.expires_seconds} "
        "({of.by[expires]}). An outage that long is enough; some queues of unpoison never have a consumer.",
        "{of.fix[expires]}",
    ),
    loss(
        "stream-queue",
        lambda of: of.kind == "stream",
        "Queue {of.name!r} is a stream: acknowledging removes nothing from it, and a consumer begins with what comes next. "
        "Messages that were there before are never run, and messages that were run never leave it.",
        "Consume a quorum queue that is bound to the same exchange, under a name of its own; or, if the stream can be spared:\n"
        "{of.delete_command}",
    ),
    loss(
        "length-limit-drops",
        lambda of: of.length_key and not of.refuses,
        "Queue {of.name!r} holds at most {of.length_limit}. When it is full RabbitMQ drops {of.dropped} to make room, and tells "
        "nobody.",
        "{of.length_fix}",
    ),
    Check(
        "length-limit-refuses",
        lambda of: of.length_key and of.refuses and of.role != "source",
        "Queue {of.name!r} holds at most {of.length_limit} and refuses more. Once it is full, what should go there cannot, and "
        "the sources are paused; nothing is lost.",
        "{of.length_fix}",
    ),
    loss(
        "messages-expire",
        lambda of: of.messages_expire(),
        "A message that waits in {of.name!r} for {of.ttl_seconds} ({of.by[message-ttl]}) {of.expired} without ever being "
        "started: a backlog, or an outage of the consumers, is enough.",
        "{of.ttl_fix}",
    ),
)

SUSPECTS = (
    loss(
        "suspects-not-quorum",
        lambda of: of.kind == "classic",
        "{of.name!r} is a classic queue, which does not count how often a message was started and came back. One that kills its "
        "consumer never reaches its limit: it does so for ever.",
        "{of.remade}",
    ),
    loss(
        "suspects-limit",
        lambda of: of.limit is not None,
        "{of.name!r} has a delivery limit of {of.limit} ({of.by[delivery-limit]}): a message whose starts never end is deleted "
        "there, without a dead letter, unless its own limit of attempts comes first.",
        "{of.fix[delivery-limit]}",
    ),
)

LETTERS = (
    loss(
        "dlq-limit",
        lambda of: of.limit is not None,
        "{of.name!r} has a delivery limit of {of.limit} ({of.by[delivery-limit]}). Letters can only be looked at by taking them "
        "out and putting them back, which counts: look {of.next_delivery} deletes them, with RabbitMQ 4.3 maybe the first look, "
        "since a letter brings its count along.",
        "{of.fix[delivery-limit]}",
    ),
    loss(
        "dlq-sends-back",
        lambda of: of.role == "dlq" and of.ttl is not None and of.exchange is not None,
        "{of.name!r} hands its letters on to the exchange {of.exchange!r} after {of.ttl_seconds} ({of.by[message-ttl]}). If that "
        "leads back to the source, a message that always fails goes round for ever; in any case nobody finds it in the DLQ.",
        "unpoison retries with a backoff of its own. {of.fix[message-ttl]}",
    ),
    loss(
        "dlq-expires",
        lambda of: of.role == "dlq" and of.letters_expire(),
        "Letters in {of.name!r} are deleted after {of.ttl_seconds} ({of.by[message-ttl]}), whether anyone has looked or not. "
        "{of.url_says}, so this is not what was meant.",
        "{of.ttl_fix}",
    ),
)

SOURCE = (
    loss(
        "source-limit-deletes",
        lambda of: of.limit is not None and of.exchange is None,
        "{of.name!r} has a delivery limit of {of.limit} ({of.by[delivery-limit]}) and no dead-letter exchange: a message that "
        "came back {of.times} is deleted. Crashes and deploys of consumers count for every message that they had fetched.",
        "{of.fix[dead-letter-exchange]}",
    ),
    loss(
        "source-limit-low",
        lambda of: of.limit is not None and of.exchange is not None and of.limit < LOW,
        "{of.name!r} has a delivery limit of {of.limit} ({of.by[delivery-limit]}). RabbitMQ counts every message that a consumer "
        "had fetched when it stopped or died: after {of.next_delivery} such ends it gives up messages that were never started, "
        "beside the one that is at fault.",
        "{of.fix[delivery-limit]}",
    ),
    loss(
        "dead-letters-loop",
        lambda of: of.ends is not None and of.name in of.ends,
        "What RabbitMQ gives up in {of.name!r} comes back to {of.name!r}, through the exchange {of.exchange!r}, with its count "
        "at zero: it goes round for ever.",
        "{of.loop_fix}",
    ),
    loss(
        "dead-letters-unrouted",
        lambda of: of.ends is not None and not of.ends,
        "{of.name!r} hands what RabbitMQ gives up to the exchange {of.exchange!r}, {of.why_unrouted}: such a message is deleted, "
        "or kept for ever where dead-lettering is at-least-once.",
        "Create the exchange, and bind a queue to it with the key {of.letter_key!r}. A consumer that starts creates 'dlx':\n"
        "unpoison run module:app",
    ),
    Check(
        "at-least-once-off",
        lambda of: of.is_at_most_once(),
        "{of.name!r} hands dead letters on at-most-once (dead-letter-strategy {of.text[dead-letter-strategy]}, overflow "
        "{of.text[overflow]}): a message that RabbitMQ itself gives up is lost if its DLQ cannot take it at that moment.",
        "{of.at_least_once_fix}",
    ),
    Check(
        "classic-queue",
        lambda of: of.kind == "classic",
        "{of.name!r} is a classic queue: it is on one node only, and when that is killed its latest acknowledgements may be "
        "undone, so that those messages run twice, and every message comes back flagged as if it had been started.",
        "Where that matters, use a quorum queue. {of.remade}",
    ),
    Check(
        "single-active-consumer",
        lambda of: of.queue.arguments.get("x-single-active-consumer"),
        "{of.name!r} has x-single-active-consumer: one consumer gets all messages, every other process that runs unpoison is "
        "idle, and the one cannot be given more at once than it began with.",
        "Where order does not need it, use a queue without it. {of.remade}",
    ),
    Check(
        "priority-queue",
        lambda of: of.queue.arguments.get("x-max-priority"),
        "{of.name!r} has {of.queue.arguments[x-max-priority]} priorities. While messages of a higher one keep coming, those of a "
        "lower one are never started, and their age runs on towards max_age.",
        "Run enough consumers, or give each priority a source of its own.",
    ),
    Check(
        "delayed-retry-on",
        lambda of: (of.queue.text("delayed-retry-type") or "disabled") != "disabled",
        "{of.name!r} has delayed-retry-type {of.text[delayed-retry-type]}: RabbitMQ holds back what a consumer had fetched when "
        "it died, also what it had never started, and does not count it as waiting. unpoison has its own backoff.",
        "{of.fix[delayed-retry-type]}",
    ),
)

DLQ_UNBOUND = Check(
    "dlq-unbound",
    lambda of: of["is_unbound"],
    "{of[dlq]!r} is not bound to the exchange 'dlx' with the key {of[source]!r}. A dead letter of {of[source]!r} cannot get "
    "there: the source is paused at the first one; nothing is lost.",
    START,
)

TIMEOUTS = (
    loss(
        "consumer-timeout-too-short",
        lambda of: of.waits is not None and of.waits < (of.needed or USUAL),
        "RabbitMQ takes messages of {of.name!r} back when they are not acknowledged within {of.waits:g} s ({of.by}), but "
        "{of.runs}. It would take back all that the consumer holds, run it again, and in the end give up a message that only "
        "takes long.",
        "{of.fix}",
    ),
    Check(
        "consumer-timeout-unseen",
        lambda of: of.waits is None and (of.needed or 0) > DEFAULT_WAIT,
        "RabbitMQ takes messages of {of.name!r} back when they are not acknowledged within 30 min, unless its own file says "
        "otherwise, which cannot be seen from here; but {of.runs}. What takes longer is run again and given up in the end.",
        "{of.unseen_fix}",
    ),
)


BY_ROLE = {"source": SOURCE, "dlq": LETTERS, "history": LETTERS, "suspects": SUSPECTS}


def of_family(vhost: VirtualHost, source: str) -> Iterator[Finding]:
    """About all queues of one source."""
    family = vhost.family(source)
    for queue in family:
        facts = QueueFacts(vhost, queue)
        yield from examine(ANY_QUEUE, facts)
        if queue.role != "source" or queue.kind != "stream":
            yield from examine(BY_ROLE.get(queue.role, ()), facts)
    yield from examine((DLQ_UNBOUND,), _binding_facts(vhost, source, {queue.name for queue in family}))
    shown = _shown_timeouts(vhost)
    for queue in family:
        # Messages of these are held while a handler runs. Classic queues have no timeout any more.
        if queue.role in ("source", "suspects") and not (queue.kind == "classic" and vhost.version >= (4, 3)):
            yield from examine(TIMEOUTS, TimeoutFacts(vhost, queue, shown))


def _binding_facts(vhost: VirtualHost, source: str, there: set[str]) -> dict[str, Any]:
    dlq = dlq_of(vhost.where, source)
    bound = [(each["destination"], each["routing_key"]) for each in vhost.bindings(DLX)] if {source, dlq} <= there else None
    return {"source": source, "dlq": dlq, "is_unbound": bound is not None and (dlq, source) not in bound}


def _shown_timeouts(vhost: VirtualHost) -> Mapping[str, int]:
    """What the server itself says of consumers that run, by queue. It does so from version 4.3 on."""
    rows: Sequence[Mapping[str, Any]] = vhost.management.of_vhost("consumers") or ()
    found = [(row["queue"]["name"], row["consumer_timeout"]) for row in rows if isinstance(row.get("consumer_timeout"), int)]
    return {name: min(each for of, each in found if of == name) for name, _ in found}


def of_exclusive(name: str) -> list[Finding]:
    """About a queue of which only the refusal of the server is known."""
    return examine(ANY_QUEUE[:1], SimpleNamespace(name=name, queue=SimpleNamespace(exclusive=True)))
