"""Which broker does a URL name? The one place that knows them all; their modules are imported only when used."""

from importlib import import_module
from typing import NamedTuple
from urllib.parse import urlsplit

from bezoar.errors import ConfigError
from bezoar.ports import Broker, DeadLetters


class Adapter(NamedTuple):
    """Where the two halves of an adapter are, as module and class names."""

    module: str
    broker: str
    dead_letters_module: str
    dead_letters: str


ADAPTERS = {
    "sqlite": Adapter("bezoar.brokers.sqlite.broker", "SQLiteBroker", "bezoar.brokers.sqlite.deadletters", "SQLiteDeadLetters"),
    "memory": Adapter("bezoar.brokers.memory", "MemoryBroker", "bezoar.brokers.memory", "MemoryDeadLetters"),
}


def broker_for(url: str) -> Broker:
    """A broker for this URL, not yet opened."""
    adapter = _adapter(url)
    made: Broker = getattr(import_module(adapter.module), adapter.broker)(url)
    return made


def dead_letters_for(url: str, source: str, *, create: bool = True) -> DeadLetters:
    """The DLQ of a source, opened. Without `create` a source that does not exist is refused."""
    adapter = _adapter(url)
    broker = broker_for(url)
    broker.open([source], create=create)
    made: DeadLetters = getattr(import_module(adapter.dead_letters_module), adapter.dead_letters)(broker, source)
    return made


def check_url(url: str) -> None:
    """Refuse a URL that no broker understands, before anything is opened."""
    broker_for(url)


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
