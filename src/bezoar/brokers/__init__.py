"""Which broker does a URL name? The one place that knows them all; their modules are imported only when used."""

from importlib import import_module
from types import ModuleType
from typing import NamedTuple
from urllib.parse import urlsplit

from bezoar.errors import ConfigError, MissingExtra
from bezoar.ports import Broker, DeadLetters


class Adapter(NamedTuple):
    """Where the two halves of an adapter are, as module and class names."""

    module: str
    broker: str
    dead_letters_module: str
    dead_letters: str
    schema: str | None = None
    """The module that knows its tables, if it has any."""


ADAPTERS = {
    "sqlite": Adapter(
        "bezoar.brokers.sqlite.broker",
        "SQLiteBroker",
        "bezoar.brokers.sqlite.deadletters",
        "SQLiteDeadLetters",
        "bezoar.brokers.sqlite.schema",
    ),
    "postgresql": Adapter(
        "bezoar.brokers.postgresql.broker",
        "PostgreSQLBroker",
        "bezoar.brokers.postgresql.deadletters",
        "PostgreSQLDeadLetters",
        "bezoar.brokers.postgresql.schema",
    ),
    "memory": Adapter("bezoar.brokers.memory", "MemoryBroker", "bezoar.brokers.memory", "MemoryDeadLetters"),
}


def broker_for(url: str) -> Broker:
    """A broker for this URL, not yet opened."""
    adapter = _adapter(url)
    made: Broker = getattr(_module(adapter, adapter.module), adapter.broker)(url)
    return made


def dead_letters_for(url: str, source: str, *, create: bool = True) -> DeadLetters:
    """The DLQ of a source, opened. Without `create` a source that does not exist is refused."""
    adapter = _adapter(url)
    broker = broker_for(url)
    broker.open([source], create=create)
    made: DeadLetters = getattr(_module(adapter, adapter.dead_letters_module), adapter.dead_letters)(broker, source)
    return made


def statements_for(url: str) -> str:
    """The statements that make the tables of this broker, for migrations of one's own."""
    adapter = _adapter(url)
    if adapter.schema is None:
        raise ConfigError(
            f"{masked(url)!r} keeps no tables, so there is nothing to migrate. What it needs it makes when it is opened."
        )
    made: str = _module(adapter, adapter.schema).statements()
    return made


def check_url(url: str) -> None:
    """Refuse a URL that no broker understands, before anything is opened."""
    broker_for(url)


def _module(adapter: Adapter, name: str) -> ModuleType:
    """A module of an adapter. The extra that brings its client is called as its package is: rabbitmq, postgresql."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "bezoar" or not name.startswith("bezoar.brokers."):
            raise
        raise MissingExtra(adapter.broker, missing, name.split(".")[2]) from error


def _adapter(url: str) -> Adapter:
    scheme = urlsplit(url).scheme
    if scheme not in ADAPTERS:
        known = ", ".join(f"{name}://" for name in ADAPTERS)
        raise ConfigError(
            f"{masked(url)!r} names no broker that bezoar knows. It knows {known}; for a file here use sqlite:///shop.db"
        )
    return ADAPTERS[scheme]


def masked(url: str) -> str:
    """The URL without its password, for logs and errors."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":***@", 1)
