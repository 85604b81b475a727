"""The benchmarks, in the order in which they run. Importing a module registers what it measures."""

from bench.cases import (
    dead_letters,
    decisions,
    failing,
    flow_control,
    guarding,
    isolation,
    kafka,
    lone_message,
    nats,
    postgresql,
    rabbitmq,
    redis,
    sqlite_drain,
    sqlite_growth,
    sqlite_publish,
    sqs,
)

__all__ = [
    "dead_letters",
    "decisions",
    "failing",
    "flow_control",
    "guarding",
    "isolation",
    "kafka",
    "lone_message",
    "nats",
    "postgresql",
    "rabbitmq",
    "redis",
    "sqlite_drain",
    "sqlite_growth",
    "sqlite_publish",
    "sqs",
]
