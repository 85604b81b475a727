"""What about the server, what all sources on it share, or the rights of the user, loses messages or holds them up?"""

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

import msgspec

from unpoison.brokers.rabbitmq.delays import LEVELS, exchange_of, queue_of, rung, rungs
from unpoison.brokers.rabbitmq.doctor.queue_checks import ANY_QUEUE
from unpoison.brokers.rabbitmq.doctor.queue_facts import START, QueueFacts, removal
from unpoison.brokers.rabbitmq.management import FoundQueue, Management, VirtualHost
from unpoison.brokers.rabbitmq.names import DLX
from unpoison.brokers.rabbitmq.provisioning import rights_of
from unpoison.brokers.rabbitmq.url import Address
from unpoison.port.broker import Finding
from unpoison.port.findings import Check, examine, loss, stop

OLDEST = (3, 10)
"""The first version in which a quorum queue can delay messages, and hand them on at-least-once."""

MAINTAINED = (4, 0)

FLAGS = ("quorum_queue", "stream_queue")
"""What at-least-once dead-lettering, and so every delay, rests on. From 4.0 on they cannot be off."""

ARGUMENTS = ("x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-strategy")


SHOWN = "{of.version[0]}.{of.version[1]}"
"""The server's version, in a text about a connection."""

CONNECTION = (
    loss(
        "server-too-old",
        lambda connection: connection.version < OLDEST,
        f"The server runs RabbitMQ {SHOWN}; unpoison needs {OLDEST[0]}.{OLDEST[1]}. Before that a quorum queue neither delays "
        "messages nor hands them on safely: no retry can wait, and dead letters may be dropped on their way.",
        "Upgrade the server, one minor version after the other:\nrabbitmq-diagnostics server_version",
    ),
    Check(
        "server-unmaintained",
        lambda connection: OLDEST <= connection.version < MAINTAINED,
        f"The server runs RabbitMQ {SHOWN}. The 3.x versions get no fixes from their makers any more, unless they are paid for.",
        "Plan the upgrade to 4.x; all feature flags have to be enabled first:\nrabbitmqctl enable_feature_flag all",
    ),
    Check(
        "heartbeat-off",
        lambda connection: not connection.wire.params.heartbeat,
        "The connection has no heartbeat: a consumer whose host or network is gone is not noticed for hours, and all that it "
        "held waits meanwhile.",
        "Take heartbeat=0 out of the URL, and out of rabbitmq.conf; unpoison asks for 30 s by itself.",
    ),
)

_REFUSES = (
    "RabbitMQ takes no message until it ends: publish waits and raises, retries and dead letters wait, and their sources are "
    "paused; nothing is lost."
)
ALARMS = (
    stop(
        "memory-alarm",
        lambda of: of["memory"],
        f"There is a memory alarm on {{of[memory]}}. {_REFUSES}",
        "See what takes the memory; to gain time, allow more of it:\nrabbitmq-diagnostics memory_breakdown\n"
        "rabbitmqctl set_vm_memory_high_watermark 0.7",
    ),
    stop(
        "disk-alarm",
        lambda of: of["disk"],
        f"There is a disk alarm on {{of[disk]}}: less is free than the limit. {_REFUSES}",
        "Free some space where RabbitMQ keeps its data. If the limit is too high for this disk:\nrabbitmq-diagnostics status\n"
        "rabbitmqctl set_disk_free_limit 1GB",
    ),
)
FEATURE_FLAG_OFF = loss(
    "feature-flag-off",
    lambda of: of["off"],
    "Switched off on the server, as after an upgrade from an old version: {of[off]}. Without them RabbitMQ creates no quorum "
    "queues, or hands messages on at-most-once: a retry that waits can be lost when the server is killed.",
    "Enable them; that cannot be undone:\n{of[commands]}",
)


def of_alarms(management: Management) -> list[Finding]:
    alarms = (management.get("health/checks/alarms") or {}).get("alarms", ())
    memory = [each["node"] for each in alarms if each["resource"] == "memory"]
    disk = [each["node"] for each in alarms if "disk" in each["resource"]]
    return examine(ALARMS, {"memory": ", ".join(memory), "disk": ", ".join(disk)})


def of_flags(management: Management, version: tuple[int, int]) -> list[Finding]:
    if version >= MAINTAINED:
        return []
    off = [each["name"] for each in management.get("feature-flags") or () if each["name"] in FLAGS and each["state"] != "enabled"]
    commands = "\n".join(f"rabbitmqctl enable_feature_flag {name}" for name in off)
    return examine((FEATURE_FLAG_OFF,), {"off": ", ".join(off), "commands": commands})


DLX_DIFFERS = Check(
    "dlx-differs",
    lambda of: of["differs"],
    f"The exchange {DLX!r} is not the durable direct one that unpoison creates: {{of[differs]}}. A fanout or headers "
    "exchange gives the letters of one source to the DLQs of all; one that does not last is gone, with its bindings, after a "
    "restart, and sources are paused at their next dead letter.",
    "Delete it with its bindings and restart all consumers, which create it again:\n{of[removal]}",
)


def of_dlx(vhost: VirtualHost) -> list[Finding]:
    found = vhost.exchange(DLX)
    if found is None:
        return []
    differs = [f"its type is {found['type']}"] if found["type"] not in ("direct", "topic") else []
    differs += ["it is not durable"] if not found["durable"] else []
    differs += ["it deletes itself"] if found["auto_delete"] else []
    return examine((DLX_DIFFERS,), {"differs": ", and ".join(differs), "removal": removal(vhost, DLX)})


DELAY_EXCHANGE = (
    loss(
        "delay-queue-differs",
        lambda of: of["type"] != "headers",
        "The exchange {of[name]!r} is of type {of[type]} and not headers, as unpoison creates it: delayed messages and retries "
        "go the wrong way, or nowhere, and their source is paused.",
        "Delete it and restart the consumers, which create it again:\n{of[removal]}",
    ),
    Check(
        "delay-queues-missing",
        lambda of: of["type"] == "headers" and of["missing"],
        "Deleted, or no longer bound to {of[name]!r}: {of[missing]}. A message with that delay cannot be stored, so its source "
        "is paused at the next such retry; what is on its way there waits, and arrives once they are back.",
        START,
    ),
)


class DelayFacts(QueueFacts):
    """One delay queue."""

    def __init__(self, vhost: VirtualHost, queue: FoundQueue, wanted: dict[str, Any]) -> None:
        super().__init__(vhost, queue)
        given = {key: (queue.arguments.get(key), wanted[key]) for key in ARGUMENTS}
        self.differs = ", ".join(f"{key} is {is_!r} and not {ought!r}" for key, (is_, ought) in given.items() if is_ != ought)
        self.meant: int = wanted["x-message-ttl"]
        self.key_by = next(iter(queue.settings("dead-letter-routing-key")), "")
        self.waits = f"{(self.ttl or 0) / 1000:g} s and not {self.meant / 1000:g} s"


DELAY_QUEUE = (
    loss(
        "delay-queue-differs",
        lambda of: of.differs,
        "Queue {of.name!r} was made by something else: {of.differs}. Messages that wait there do not come back at their time, or "
        "never.",
        "{of.remade}",
    ),
    loss(
        "delay-queue-differs",
        lambda of: not of.differs and of.key is not None,
        "Queue {of.name!r} sends every message that has waited there to {of.key!r} and not back to its source "
        "(dead-letter-routing-key, by {of.key_by}).",
        "{of.fix[dead-letter-routing-key]}",
    ),
    Check(
        "delay-cut-short",
        lambda of: not of.differs and of.ttl is not None and of.ttl < of.meant,
        "Messages wait in {of.name!r} for {of.waits} ({of.by[message-ttl]}): retries come early, and the backoff does not hold.",
        "{of.fix[message-ttl]}",
    ),
)


def of_delays(vhost: VirtualHost) -> Iterator[Finding]:
    """About the queues that all sources of this virtual host share, as far as they have been needed."""
    for level in range(LEVELS):
        yield from _of_delay_exchange(vhost, level)
    alike: dict[tuple[str, str], list[Finding]] = {}
    for level in range(LEVELS):
        for digit in rungs(level):
            for each in _of_delay_queue(vhost, level, digit):
                alike.setdefault((each.name, each.fix), []).append(each)
    for first, *others in alike.values():
        more = f" The same is true of {len(others)} more delay queues." if others else ""
        yield msgspec.structs.replace(first, problem=first.problem + more)


def _of_delay_exchange(vhost: VirtualHost, level: int) -> list[Finding]:
    name = exchange_of(level)
    found = vhost.exchange(name)
    if found is None:
        return []
    bound = {each["destination"] for each in vhost.bindings(name)}
    wanted = [rung(level, digit) for digit in rungs(level)] + ([exchange_of(level - 1)] if level else [])
    missing = ", ".join(each for each in wanted if each not in bound)
    facts = {"name": name, "type": found["type"], "missing": missing, "removal": removal(vhost, name)}
    return examine(DELAY_EXCHANGE, facts)


def _of_delay_queue(vhost: VirtualHost, level: int, digit: int) -> list[Finding]:
    queue = vhost.queue(rung(level, digit), "delay")
    if queue is None:
        return []
    facts = DelayFacts(vhost, queue, dict(queue_of(level, digit).arguments))
    return examine(DELAY_QUEUE, facts) + ([] if facts.differs else examine(ANY_QUEUE, facts))


_PAUSED = "A consumer or publisher of this user fails at the first use and is paused; nothing is lost."
MISSING_RIGHTS = Check(
    "missing-rights",
    lambda of: of["lacks"],
    "{of[lacks]}. {of[means]}",
    "Give it these rights, beside those that it has:\n{of[command]}",
)


def of_rights(where: Address, management: Management, sources: Sequence[str]) -> list[Finding]:
    """Where the management API is asked as an administrator, it says what the user of the URL may do."""
    given: Mapping[str, str] = management.of_vhost("permissions", _user(where)) or {}
    return examine((MISSING_RIGHTS,), _rights_facts(where, sources, given))


def of_refusal(where: Address, source: str, said: str) -> list[Finding]:
    """Where the server itself refused a look."""
    facts = _rights_facts(where, [source], {})
    return examine((MISSING_RIGHTS,), {**facts, "lacks": f"RabbitMQ refuses {_user(where)!r} a look at {source!r}: {said}"})


def _rights_facts(where: Address, sources: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    needed = rights_of(where, sources, create=True)
    missing = needed.lacking(given)
    wanted = " ".join(quote(pattern) for pattern in needed.beside(given).values())
    lacks = "; ".join(f"{kind} on {', '.join(dict.fromkeys(names))}" for kind, names in missing.items())
    return {
        "lacks": lacks and f"The user {_user(where)!r} lacks: {lacks}",
        "means": _PAUSED
        if rights_of(where, sources, create=False).lacking(given)
        else "That is enough for an app with create=False; another one does not start with this user.",
        "command": f"rabbitmqctl set_permissions -p {quote(where.vhost)} {quote(_user(where))} {wanted}",
    }


def _user(where: Address) -> str:
    return str(where.parameters.credentials.username)
