"""How is each peer set up? Typed, from setups.toml."""

import functools
import json
import os
from pathlib import Path
from typing import Any

import msgspec

PEERS = Path(__file__).resolve().parent
FILE = PEERS / "setups.toml"
BROKERS = ("rabbitmq", "redis", "nats", "postgresql", "sqlite", "kafka", "sqs")
NAMES = {
    "rabbitmq": "RabbitMQ",
    "redis": "Redis",
    "nats": "NATS JetStream",
    "postgresql": "PostgreSQL",
    "sqlite": "SQLite",
    "kafka": "Kafka",
    "sqs": "SQS (ElasticMQ)",
}


RAW = {
    "rabbitmq": "pika by hand: prefetch 1,000, ack 100 at once",
    "redis": "redis-py by hand: XREADGROUP 100, end by script",
    "nats": "nats-py by hand: push, ack each",
    "postgresql": "psycopg by hand: lease 256 rows, delete them",
    "sqlite": "sqlite3 by hand: lease 100 rows, delete them",
    "kafka": "confluent-kafka by hand: consume 500, commit without waiting",
}
"""The best loop that is as safe, on each broker."""

OURS = "unpoison, isolated worker"


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One peer on one broker. What the fields mean stands at the head of setups.toml."""

    name: str
    peer: str
    label: str
    broker: str
    worker: str
    why: str
    settings: dict[str, Any]
    environment: dict[str, str] = {}
    kept: dict[str, str] = {}
    messages: int = 0
    per_call: int = 1
    silence: float = 25.0
    gone: str = "gone"

    @property
    def folder(self) -> Path:
        return PEERS / self.peer

    @property
    def app(self) -> Path:
        """The file with its app: one for all brokers, or one for each."""
        own = self.folder / f"on_{self.broker}.py"
        return own if own.exists() else self.folder / "app.py"

    def variables(self, url: str, folder: Path) -> dict[str, str]:
        """The environment of its processes."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("UNPOISON_", "PYTHON"))}
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(PEERS / "kit"), str(self.folder)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "PEER_URL": url,
            "PEER_FOLDER": str(folder),
            "PEER_SETTINGS": json.dumps(self.settings),
            **self.environment,
        }


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    title: str
    package: str
    offers: str


class Setups(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    peer: list[Peer]
    drain: list[Setup]
    kill: list[Setup]


@functools.cache
def known() -> Setups:
    found = msgspec.toml.decode(FILE.read_bytes(), type=Setups)
    for setups in (found.drain, found.kill):
        names = [setup.name for setup in setups]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{FILE.name} has two setups named {', '.join(twice)}. Results are kept by name: give each its own.")
    return found
