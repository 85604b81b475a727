"""Is the server one that unpoison can rely on, and can it take messages now?"""

from collections.abc import Iterator

from unpoison.brokers.rabbitmq.connection import Link
from unpoison.brokers.rabbitmq.doctor.management import Management
from unpoison.port.broker import Finding

NAMES = ("server-too-old", "server-unmaintained", "heartbeat-off", "feature-flag-off", "memory-alarm", "disk-alarm")

OLDEST = (3, 10)
"""The first version in which a quorum queue can delay messages, and hand them on at-least-once."""

MAINTAINED = (4, 0)

FLAGS = ("quorum_queue", "stream_queue")
"""What at-least-once dead-lettering, and so every delay, rests on. From 4.0 on they cannot be off."""


def of_link(link: Link) -> Iterator[Finding]:
    """What a connection tells."""
    version = ".".join(map(str, link.version))
    if link.version < OLDEST:
        yield Finding(
            "server-too-old",
            f"The server runs RabbitMQ {version}; unpoison needs {'.'.join(map(str, OLDEST))}. Before that a quorum queue "
            "neither delays messages nor hands them on safely: no retry can wait, and dead letters may be dropped on their "
            "way.",
            "Upgrade the server, one minor version after the other:\nrabbitmq-diagnostics server_version",
            loses=True,
        )
    elif link.version < MAINTAINED:
        yield Finding(
            "server-unmaintained",
            f"The server runs RabbitMQ {version}. The 3.x versions get no fixes from their makers any more, unless they are "
            "paid for.",
            "Plan the way to 4.x; all feature flags have to be enabled first:\nrabbitmqctl enable_feature_flag all",
        )
    if not link.wire.params.heartbeat:
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
