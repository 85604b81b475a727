"""Checks of the doctor for the server: settings that lose messages, or keep them from being written."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import redis

from unpoison.brokers.redis.connection import Connection
from unpoison.brokers.redis.errors import word
from unpoison.brokers.redis.names import owner_channel
from unpoison.port import findings
from unpoison.port.broker import Finding
from unpoison.port.findings import Check, loss, stop

NEARLY_FULL = 0.9
"""The share of maxmemory in use that is reported."""

_SAVE = "CONFIG REWRITE"
_APPEND = f"Switch the append-only file on:\nCONFIG SET appendonly yes\n{_SAVE}"

PERSISTENCE = (
    loss(
        "no-persistence",
        lambda of: of["appendonly"] == "no" and not of["save"],
        "The server behind {of[shown]} keeps nothing on its disk: a restart loses every message and dead letter.",
        _APPEND,
    ),
    loss(
        "snapshots-only",
        lambda of: of["appendonly"] == "no" and of["save"],
        "The server behind {of[shown]} writes snapshots only (save {of[save]}): a restart after a crash goes back to the last "
        "one. Messages published since are lost, and those finished since run again.",
        _APPEND,
    ),
    loss(
        "appendfsync-no",
        lambda of: of["appendonly"] != "no" and of["appendfsync"] == "no",
        "The server runs with appendfsync no: the system decides when its file reaches the disk, usually within 30 seconds. "
        "A power cut loses what was confirmed in that time.",
        f"Sync every second, or before each confirmation (always):\nCONFIG SET appendfsync everysec\n{_SAVE}",
    ),
)
MEMORY = (
    loss(
        "eviction",
        lambda of: of["maxmemory-policy"].startswith("allkeys-"),
        "The server runs with maxmemory-policy {of[maxmemory-policy]}: {of[when_full]} it deletes whole keys to make room: all "
        "messages of a source, or all its dead letters, at once. This setting is for caches.",
        f"Make it refuse to write instead, or give the queues their own server:\nCONFIG SET maxmemory-policy noeviction\n{_SAVE}",
    ),
    Check(
        "memory-nearly-full",
        lambda of: of["limit"] and of["used"] >= NEARLY_FULL * of["limit"],
        "{of[used_size]} of {of[limit_size]} MiB (maxmemory) are in use. When it is full, nothing can be published, retried or "
        "dead-lettered, and sources pause; nothing is lost.",
        f"Find what uses it (redis-cli --bigkeys), or allow more:\nCONFIG SET maxmemory {{of[twice]}}\n{_SAVE}",
    ),
)
FILE_NOT_WRITTEN = stop(
    "file-not-written",
    lambda of: of["failed"],
    "The server could not write to its disk the last time ({of[failed]}). While it cannot, it refuses to store anything, or "
    "what it stores is lost when it ends.",
    "Look at its log and at the free space on its disk. Once that is fixed, try:\nBGSAVE",
)
READ_ONLY_REPLICA = stop(
    "read-only-replica",
    lambda of: of.get("role") == "slave",
    "The server behind {of[shown]} is a replica, which only reads: nothing can be published or consumed there.",
    "Point the URL at its master, {of[master_host]}:{of[master_port]}. With sentinels the master is found: "
    "redis+sentinel://host:26379/name",
)

NAMES = (*findings.names_of(PERSISTENCE, MEMORY, (FILE_NOT_WRITTEN, READ_ONLY_REPLICA)), "cannot-subscribe")


class NotAllowed(Exception):
    """This user may not run the command, or the server does not offer it (as hosted ones)."""

    def __init__(self, error: Exception, command: str, user: str) -> None:
        self.command, self.user = command, user
        super().__init__(str(error))


class Look:
    """Read-only questions to the server that has a key."""

    def __init__(self, connection: Connection, key: str) -> None:
        self.connection, self.key = connection, key
        self.shown, self.group = connection.address.shown, connection.address.group
        self.user = connection.address.options.get("username") or "default"

    def ask(self, *command: Any) -> Any:
        answer = self.connection.try_all(self.key, command)[0]
        if isinstance(answer, redis.ResponseError):
            if word(answer) == "NOPERM" or "unknown command" in str(answer):
                name = "|".join(map(str, command[:2])).lower() if command[0] == "CONFIG" else command[0]
                raise NotAllowed(answer, name, self.user)
            raise answer
        return answer

    def info(self, section: str) -> dict[str, str]:
        text = self.ask("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def table(self, *command: Any) -> list[dict[str, Any]]:
        """The answer of a command that returns names and values in turn, of one thing or of several."""
        rows = self.ask(*command)
        flat = rows if rows and isinstance(rows[0], list) else [rows]
        return [{name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)} for row in flat if row]

    def kind(self, key: str) -> str:
        return str(self.ask("TYPE", key).decode())


def _examine(table: tuple[Check, ...], facts_of: Callable[[Look], dict[str, Any]], look: Look) -> Iterator[Finding]:
    yield from findings.examine(table, facts_of(look) | {"shown": look.shown})


def _config(look: Look, names: Sequence[str]) -> dict[str, Any]:
    return {name: value.decode() for each in names for name, value in look.table("CONFIG", "GET", each)[0].items()}


def _persistence(look: Look) -> dict[str, Any]:
    return _config(look, ("appendonly", "save", "appendfsync"))


def _memory(look: Look) -> dict[str, Any]:
    config = _config(look, ("maxmemory", "maxmemory-policy"))
    limit, used = int(config["maxmemory"]), int(look.info("memory")["used_memory"])
    limit_size, used_size = f"{limit / 2**20:,.0f}", f"{used / 2**20:,.0f}"
    when_full = f"at {limit_size} MiB" if limit else "once it has a maxmemory, which it does not have now,"
    sizes = {"limit_size": limit_size, "used_size": used_size, "twice": 2 * limit, "when_full": when_full}
    return config | {"limit": limit, "used": used} | sizes


def _disk(look: Look) -> dict[str, Any]:
    info = look.info("persistence")
    names = ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
    return {"failed": ", ".join(name for name in names if info.get(name, "ok") != "ok")}


def _role(look: Look) -> dict[str, Any]:
    return look.info("replication")


def _of_subscribing(look: Look) -> Iterator[Finding]:
    """On its own connection: one with a subscription takes no other commands."""
    node = look.connection.finder.connect(look.key)
    try:
        answer = node.ask([("SUBSCRIBE", owner_channel("doctor"))])[0]
    finally:
        node.close()
    if isinstance(answer, redis.ResponseError):
        yield Finding(
            "cannot-subscribe",
            f"The user {look.user!r} may not subscribe to channels ({answer}). A consumer that died is then noticed only by its "
            f"silence, after 30 seconds instead of at once.",
            f"Allow it, for unpoison's own channels:\nACL SETUSER {look.user} +@pubsub &unpoison:*",
        )


CHECKS: dict[str, Callable[[Look], Iterator[Finding]]] = {
    "whether messages survive a restart": partial(_examine, PERSISTENCE, _persistence),
    "whether messages are deleted when the memory is full": partial(_examine, MEMORY, _memory),
    "whether the server can write to its disk": partial(_examine, (FILE_NOT_WRITTEN,), _disk),
    "whether the server is a replica": partial(_examine, (READ_ONLY_REPLICA,), _role),
    "whether consumers can show that they are alive": _of_subscribing,
}
