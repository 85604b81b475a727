"""Is the server one that unpoison can rely on, and can it take messages now?"""

from collections.abc import Iterator

import msgspec

from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.delays import LEVELS, exchange_of, queue_of, rung, rungs
from unpoison.brokers.rabbitmq.doctor.fixes import mended, remade, removal
from unpoison.brokers.rabbitmq.doctor.queues import of_any_queue
from unpoison.brokers.rabbitmq.management import FoundQueue, Management, VirtualHost
from unpoison.port.broker import Finding

SERVER = ("server-too-old", "server-unmaintained", "heartbeat-off", "feature-flag-off", "memory-alarm", "disk-alarm")

OLDEST = (3, 10)
"""The first version in which a quorum queue can delay messages, and hand them on at-least-once."""

MAINTAINED = (4, 0)

FLAGS = ("quorum_queue", "stream_queue")
"""What at-least-once dead-lettering, and so every delay, rests on. From 4.0 on they cannot be off."""


def of_connection(connection: Connection) -> Iterator[Finding]:
    """What a connection tells."""
    version = ".".join(map(str, connection.version))
    if connection.version < OLDEST:
        yield Finding(
            "server-too-old",
            f"The server runs RabbitMQ {version}; unpoison needs {'.'.join(map(str, OLDEST))}. Before that a quorum queue "
            "neither delays messages nor hands them on safely: no retry can wait, and dead letters may be dropped on their "
            "way.",
            "Upgrade the server, one minor version after the other:\nrabbitmq-diagnostics server_version",
            loses=True,
        )
    elif connection.version < MAINTAINED:
        yield Finding(
            "server-unmaintained",
            f"The server runs RabbitMQ {version}. The 3.x versions get no fixes from their makers any more, unless they are "
            "paid for.",
            "Plan the way to 4.x; all feature flags have to be enabled first:\nrabbitmqctl enable_feature_flag all",
        )
    if not connection.wire.params.heartbeat:
        yield Finding(
            "heartbeat-off",
            "The connection has no heartbeat: a consumer whose host or network is gone is not noticed for hours, and all that "
            "it held waits meanwhile.",
            "Take heartbeat=0 out of the URL, and out of rabbitmq.conf; unpoison asks for 30 s by itself.",
        )


def of_alarms(management: Management) -> Iterator[Finding]:
    said = management.get("health/checks/alarms") or {}
    alarms = [(each["resource"], each["node"]) for each in said.get("alarms", ())]
    memory = [node for resource, node in alarms if resource == "memory"]
    disk = [node for resource, node in alarms if "disk" in resource]
    still = "RabbitMQ takes no message until it ends: publish waits and raises, retries and dead letters wait, and their "
    if memory:
        yield Finding(
            "memory-alarm",
            f"There is a memory alarm on {', '.join(memory)}. {still}sources stand still; nothing is lost.",
            "See what takes the memory; for some air, allow more of it:\nrabbitmq-diagnostics memory_breakdown\n"
            "rabbitmqctl set_vm_memory_high_watermark 0.7",
            stops=True,
        )
    if disk:
        yield Finding(
            "disk-alarm",
            f"There is a disk alarm on {', '.join(disk)}: less is free than the limit. {still}sources stand still; nothing is "
            "lost.",
            "Free some space where RabbitMQ keeps its data. If the limit is too high for this disk:\n"
            "rabbitmq-diagnostics status\nrabbitmqctl set_disk_free_limit 1GB",
            stops=True,
        )


def of_flags(management: Management, version: tuple[int, int]) -> Iterator[Finding]:
    if version >= MAINTAINED:
        return
    off = [each["name"] for each in management.get("feature-flags") or () if each["name"] in FLAGS and each["state"] != "enabled"]
    if off:
        yield Finding(
            "feature-flag-off",
            f"Switched off on the server, as after an upgrade from an old version: {', '.join(off)}. Without them RabbitMQ "
            "makes no quorum queues, or hands messages on at-most-once: a retry that waits can be lost when the server is "
            "killed.",
            "Enable them; that cannot be undone:\n" + "\n".join(f"rabbitmqctl enable_feature_flag {name}" for name in off),
            loses=True,
        )


# Do messages that wait come back, all of them and at their time?


DELAYS = ("delay-queue-differs", "delay-queues-missing", "delay-cut-short")

ARGUMENTS = ("x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-strategy")


def of_delays(vhost: VirtualHost) -> Iterator[Finding]:
    """About the queues that all sources of this virtual host share, as far as they have been needed."""
    for level in range(LEVELS):
        yield from _of_exchange(vhost, level)
    found: dict[tuple[str, str], list[Finding]] = {}
    for level in range(LEVELS):
        for digit in rungs(level):
            queue = vhost.queue(rung(level, digit), "delay")
            for each in () if queue is None else _of_rung(vhost, level, digit, queue):
                found.setdefault((each.name, each.fix), []).append(each)
    for first, *others in found.values():
        more = f" So it is with {len(others)} more of the queues of delays." if others else ""
        yield msgspec.structs.replace(first, problem=first.problem + more)


def _of_exchange(vhost: VirtualHost, level: int) -> Iterator[Finding]:
    name = exchange_of(level)
    found = vhost.exchange(name)
    if found is None:
        return
    if found["type"] != "headers":
        yield Finding(
            "delay-queue-differs",
            f"The exchange {name!r} is of type {found['type']} and not headers, as unpoison would make it: delayed messages and "
            "retries go the wrong way, or nowhere, and their source stands still.",
            f"Delete it and start the consumers anew, which make it again:\n{removal(vhost, name)}",
            loses=True,
        )
        return
    bound = {each["destination"] for each in vhost.bindings(name)}
    wanted = [rung(level, digit) for digit in rungs(level)] + ([exchange_of(level - 1)] if level else [])
    missing = [each for each in wanted if each not in bound]
    if missing:
        yield Finding(
            "delay-queues-missing",
            f"Deleted, or no longer bound to {name!r}: {', '.join(missing)}. A message with that delay cannot be stored, so "
            "its source stands still at the next such retry; what is on its way there waits, and arrives once they are back.",
            "Start the consumers anew: they make the queues at the first delay.\nunpoison run module:app",
        )


def _of_rung(vhost: VirtualHost, level: int, digit: int, queue: FoundQueue) -> Iterator[Finding]:
    should = queue_of(level, digit).arguments
    given = {key: (queue.arguments.get(key), should[key]) for key in ARGUMENTS}
    differs = [f"{key} is {is_!r} and not {ought!r}" for key, (is_, ought) in given.items() if is_ != ought]
    if differs:
        yield Finding(
            "delay-queue-differs",
            f"Queue {queue.name!r} was made by something else: {', '.join(differs)}. Messages that wait there do not come back "
            "at their time, or never.",
            remade(vhost, queue),
            loses=True,
        )
        return
    if (key := queue.text("dead-letter-routing-key")) is not None:
        yield Finding(
            "delay-queue-differs",
            f"Queue {queue.name!r} sends every message that has waited there to {key!r} and not back to its source "
            f"(dead-letter-routing-key, {_set_by(queue)}).",
            mended(vhost, queue, "dead-letter-routing-key"),
            loses=True,
        )
    ttl, meant = queue.number("message-ttl"), should["x-message-ttl"]
    if ttl is not None and ttl < meant:
        yield Finding(
            "delay-cut-short",
            f"Messages wait in {queue.name!r} for {ttl / 1000:g} s and not {meant / 1000:g} s ({queue.by('message-ttl')}): "
            "retries come early, and the backoff does not hold.",
            mended(vhost, queue, "message-ttl"),
        )
    yield from of_any_queue(vhost, queue)


def _set_by(queue: FoundQueue) -> str:
    return "by " + next(iter(queue.settings("dead-letter-routing-key")))
