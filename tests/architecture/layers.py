"""Which module belongs where, and whom may it import?

This table is the architecture: a folder is a layer. A new package gets a line here; a new dependency is a decision made here.
`"brokers"` names one module (for a package: its `__init__`), `"brokers.*"` everything below it,
`""` the package's own `__init__`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A package, and the layers below it: those that it may import, besides itself. `modules` if it is not just a package."""

    name: str
    below: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        return self.modules or (self.name, f"{self.name}.*")


EVERYTHING = (
    "model",
    "body",
    "filters",
    "decide",
    "control",
    "port",
    "reporting",
    "observing",
    "redaction",
    "tracing",
    "worker",
    "workers",
    "store",
    "notifying",
    "deadletters",
    "flow",
    "app",
    "programs",
    "package",
)
"""What commands and tests may use, besides what they name."""

LAYERS = (
    Layer("model", (), ("model", "model.*", "errors")),
    Layer("classify", ("model",)),
    Layer("body", ("model",)),
    Layer("filters", ("model",)),
    Layer("redaction", ("model",)),
    Layer("planning", ("model",), ("planning",)),
    Layer("alerting", ("model",)),
    Layer("control", ("model",)),
    Layer("decide", ("model", "classify", "body", "control")),
    Layer("port", ("model", "decide")),
    Layer("brokers", ("model", "port"), ("brokers.*",)),
    Layer("registry", ("model", "port", "brokers"), ("brokers",)),
    Layer("reporting", ("model", "decide", "control", "port")),
    Layer("tracing", ("model", "body", "port", "reporting")),
    Layer("worker", ("model", "classify", "body", "decide", "reporting", "tracing")),
    Layer("workers", ("model", "decide", "reporting", "tracing", "worker")),
    Layer("store", ("model", "filters", "redaction", "port", "brokers", "registry")),
    Layer("notifying", ("model", "decide", "control", "port", "reporting", "store")),
    Layer("deadletters", ("model", "filters", "port"), ("deadletters",)),
    Layer("observing", ("model", "decide", "control", "port", "registry", "reporting", "store")),
    Layer(
        "flow",
        (
            "model",
            "body",
            "decide",
            "control",
            "port",
            "registry",
            "reporting",
            "observing",
            "tracing",
            "worker",
            "workers",
            "store",
            "notifying",
        ),
    ),
    Layer(
        "app",
        (
            *("model", "body", "redaction", "decide", "control", "port", "registry", "reporting", "observing", "worker", "store"),
            *("notifying", "deadletters", "flow"),
        ),
        ("app", "app_internals"),
    ),
    Layer("simulation", ("model", "decide", "control", "port", "reporting", "workers", "flow")),
    Layer("programs", ("model", "decide", "port", "reporting", "worker", "flow", "app")),
    Layer("package", ("model", "filters", "redaction", "decide", "control", "reporting", "deadletters", "app"), ("",)),
    Layer("cli", (*EVERYTHING, "alerting", "planning", "registry", "simulation"), ("cli", "cli.*", "__main__")),
    Layer("testing", (*EVERYTHING, "brokers", "registry")),
)

SEPARATE_UNITS = ("brokers",)
"""Layers in which each child is on its own: `brokers.sqlite` and what is below it import each other, never `brokers.memory`."""

PACKAGES = {
    "msgspec": ("*",),
    "click": ("cli", "cli.*"),
    "rich": ("cli", "cli.*"),
    "pytest": ("testing", "testing.*"),
    "requests": ("testing.dependency",),
    "pydantic": ("body.guard",),
    "jsonschema": ("body.guard",),
    "referencing": ("body.guard",),
    "cryptography": ("redaction.keys",),
    "psycopg": ("brokers.postgresql", "brokers.postgresql.*", "store.postgresql", "store.provisioning"),
    "nats": ("brokers.nats.*",),
    "redis": ("brokers.redis.*",),
    "hiredis": ("brokers.redis.*",),
    "opentelemetry": ("tracing.*",),
    "pika": ("brokers.rabbitmq.*",),
    "confluent_kafka": ("brokers.kafka.*",),
    "botocore": ("brokers.sqs.*",),
    "prometheus_client": ("observing.metrics", "observing.families"),
    "sqlite3": ("brokers.sqlite", "brokers.sqlite.*", "store.sqlite", "testing.contract.fleet"),
}
"""Who may import a package that is not ours. Not named: nobody may; the rest of the standard library: everybody."""


def matches(module: str, pattern: str) -> bool:
    """Whether a line of the table speaks of this module."""
    if pattern == "*":
        return True
    return module.startswith(pattern.removesuffix("*")) if pattern.endswith(".*") else module == pattern


def layer_of(module: str, layers: tuple[Layer, ...] = LAYERS) -> Layer | None:
    """The layer whose line fits best: an exact name goes before its package."""
    fitting = [(pattern, layer) for layer in layers for pattern in layer.patterns if matches(module, pattern)]
    return max(fitting, key=lambda found: (not found[0].endswith("*"), len(found[0])))[1] if fitting else None


def unit_of(module: str) -> str:
    """`brokers.sqlite` for itself and for everything below it."""
    return ".".join(module.split(".")[:2])
