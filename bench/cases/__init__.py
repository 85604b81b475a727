"""The benchmarks, in the order in which they run. Importing a module registers what it measures."""

from bench.cases import (
    decisions,
    failing,
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
    "decisions",
    "failing",
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
