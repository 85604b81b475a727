"""Which module belongs where, and whom may it import?

This table is the architecture. A new module gets a line here; a new dependency is a decision made here.
`"brokers"` names one module (for a package: its `__init__`), `"brokers.*"` everything below it,
`""` the package's own `__init__`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """Modules with the same place in the order. `below` are the layers that they may import, besides their own."""

    name: str
    modules: tuple[str, ...]
    below: tuple[str, ...] = ()


LAYERS = (
    Layer(
        "values",
        (
            "native",
            "message",
            "metadata",
            "plural",
            "failure",
            "classification",
            "verdict",
            "errors",
            "broker_url",
            "backoff",
            "deadletters",
            "deadletters.record",
        ),
    ),
    Layer(
        "decisions",
        (
            "classify",
            "known_errors",
            "process_faults",
            "status_codes",
            "broker_codes",
            "answers",
            "handler",
            "attempts",
            "waiting",
            "options",
            "guard",
            "payload",
            "payload_types",
            "json_text",
            "signature",
            "keys",
            "planning",
            "planning.*",
        ),
        ("values",),
    ),
    Layer(
        "ports",
        (
            "ports",
            "publishing",
            "provisioning",
            "stored",
            "findings",
            "renewing",
            "takeovers",
            "moved_back",
            "reading",
            "dlq_index",
            "whole_dlq",
        ),
        ("values", "decisions"),
    ),
    Layer("brokers", ("brokers.*",), ("values", "ports")),
    Layer("registry", ("brokers",), ("values", "ports", "brokers")),
    # What the consumer and its workers both use; knows neither.
    Layer("means", ("report", "bell", "escaping", "log_lines"), ("values", "decisions")),
    Layer("workers", ("workers", "workers.*"), ("values", "decisions", "ports", "means")),
    Layer(
        "flow",
        (
            "app",
            "sending",
            "registration",
            "run",
            "staffing",
            "companion",
            "consumer",
            "alone",
            "emptiness",
            "until_empty",
            "judging",
            "deadletters.*",
        ),
        ("values", "decisions", "ports", "registry", "means", "workers"),
    ),
    # The far end of the pipe: processes that import the user's app. The consumer starts them and never imports them.
    Layer(
        "worker side",
        ("workers.template", "workers.child", "workers.importing", "workers.hook_serving", "workers.beside"),
        ("values", "decisions", "means", "workers", "flow"),
    ),
    Layer("package", ("",), ("values", "decisions", "ports", "flow")),
    Layer(
        "cli",
        ("cli", "cli.*", "__main__"),
        ("values", "decisions", "ports", "registry", "means", "workers", "flow", "worker side", "package"),
    ),
    Layer(
        "testing",
        ("testing", "testing.*"),
        ("values", "decisions", "ports", "brokers", "registry", "means", "workers", "flow", "worker side", "package"),
    ),
)

SEPARATE_UNITS = ("brokers",)
"""Layers in which each child is on its own: `brokers.sqlite` and what is below it import each other, never `brokers.memory`."""

PACKAGES = {
    "msgspec": ("*",),
    "click": ("cli", "cli.*"),
    "rich": ("cli", "cli.*"),
    "pytest": ("testing", "testing.*"),
    "pydantic": ("guard",),
    "jsonschema": ("guard",),
    "referencing": ("guard",),
    "psycopg": ("brokers.postgresql", "brokers.postgresql.*"),
    "nats": ("brokers.nats.*",),
    "redis": ("brokers.redis.*",),
    "hiredis": ("brokers.redis.*",),
    "pika": ("brokers.rabbitmq.*",),
    "confluent_kafka": ("brokers.kafka.*",),
    "botocore": ("brokers.sqs.*",),
    "sqlite3": ("brokers.sqlite", "brokers.sqlite.*"),
}
"""Who may import a package that is not ours. Not named: nobody may; the rest of the standard library: everybody."""


def matches(module: str, pattern: str) -> bool:
    """Whether a line of the table speaks of this module."""
    if pattern == "*":
        return True
    return module.startswith(pattern.removesuffix("*")) if pattern.endswith(".*") else module == pattern


def layer_of(module: str, layers: tuple[Layer, ...] = LAYERS) -> Layer | None:
    """The layer whose line fits best: an exact name goes before its package."""
    fitting = [(pattern, layer) for layer in layers for pattern in layer.modules if matches(module, pattern)]
    return max(fitting, key=lambda found: (not found[0].endswith("*"), len(found[0])))[1] if fitting else None


def unit_of(module: str) -> str:
    """`brokers.sqlite` for itself and for everything below it."""
    return ".".join(module.split(".")[:2])
