"""Which settings of a server lose messages, or keep them from being written?"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import redis

from unpoison.brokers.redis.connection import Connection
from unpoison.brokers.redis.errors import word
from unpoison.brokers.redis.names import owner_channel
from unpoison.port.broker import Finding

# How does the doctor ask? One question at a time, and it hears when it may not.


class NotAllowed(Exception):
    """This user may not ask that, or the server does not have the command (as where it is rented)."""

    def __init__(self, error: Exception, command: str, user: str) -> None:
        self.command, self.user = command, user
        super().__init__(str(error))


class Look:
    """A look at the server that has a key."""

    def __init__(self, link: Connection, key: str) -> None:
        self.link, self.key = link, key

    @property
    def shown(self) -> str:
        return self.link.finder.address.shown

    @property
    def group(self) -> str:
        return self.link.finder.address.group

    def ask(self, *command: Any) -> Any:
        answer = self.link.try_all(self.key, command)[0]
        if isinstance(answer, redis.ResponseError):
            if word(answer) == "NOPERM" or "unknown command" in str(answer):
                user = self.link.finder.address.options.get("username") or "default"
                raise NotAllowed(answer, "|".join(map(str, command[:2])).lower() if command[0] == "CONFIG" else command[0], user)
            raise answer
        return answer

    def info(self, section: str) -> dict[str, str]:
        told = self.ask("INFO", section).decode()
        return dict(line.split(":", 1) for line in told.splitlines() if ":" in line)

    def table(self, *command: Any) -> list[dict[str, Any]]:
        """The answer of a command that tells names and values in turn, for one thing or for several."""
        rows = self.ask(*command)
        flat = rows if rows and isinstance(rows[0], list) else [rows]
        return [{name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)} for row in flat if row]

    def kind(self, key: str) -> str:
        return str(self.ask("TYPE", key).decode())


# (the part that gave this module its question)


SERVER_FINDINGS = (
    "no-persistence",
    "snapshots-only",
    "appendfsync-no",
    "eviction",
    "memory-nearly-full",
    "file-not-written",
    "read-only-replica",
    "cannot-subscribe",
)

NEARLY_FULL = 0.9
"""The share of maxmemory in use from which on it is nearly full."""

_KEEP_IT = "CONFIG REWRITE"


def checks(look: Look) -> dict[str, Callable[[], Iterator[Finding]]]:
    return {
        "whether messages survive a restart": partial(_of_persistence, look),
        "whether messages are thrown away when the memory is full": partial(_of_memory, look),
        "whether the server can write to its disk": partial(_of_disk, look),
        "whether the server is a replica": partial(_of_role, look),
        "whether consumers can show that they are alive": partial(_of_subscribing, look),
    }


def _config(look: Look, *names: str) -> dict[str, str]:
    found: dict[str, bytes] = {}
    for name in names:
        found |= look.table("CONFIG", "GET", name)[0]
    return {name: value.decode() for name, value in found.items()}


def _of_persistence(look: Look) -> Iterator[Finding]:
    config = _config(look, "appendonly", "save", "appendfsync")
    switch_on = f"Switch the append-only file on:\nCONFIG SET appendonly yes\n{_KEEP_IT}"
    if config["appendonly"] == "no" and not config["save"]:
        yield Finding(
            "no-persistence",
            f"The server behind {look.shown} keeps nothing on its disk: a restart loses every message and dead letter.",
            switch_on,
            loses=True,
        )
    elif config["appendonly"] == "no":
        yield Finding(
            "snapshots-only",
            f"The server behind {look.shown} writes snapshots only (save {config['save']}): a restart after a crash goes back to "
            f"the last one. Messages published since are lost, and those finished since run again.",
            switch_on,
            loses=True,
        )
    elif config["appendfsync"] == "no":
        yield Finding(
            "appendfsync-no",
            "The server runs with appendfsync no: the system decides when its file reaches the disk, usually within 30 seconds. "
            "A power cut loses what was confirmed in that time.",
            f"Have it synced every second, or before each confirmation (always):\nCONFIG SET appendfsync everysec\n{_KEEP_IT}",
            loses=True,
        )


def _of_memory(look: Look) -> Iterator[Finding]:
    config = _config(look, "maxmemory", "maxmemory-policy")
    limit, policy = int(config["maxmemory"]), config["maxmemory-policy"]
    if policy.startswith("allkeys-"):
        full = f"at {limit / 2**20:,.0f} MiB" if limit else "once it has a maxmemory, which it does not have now,"
        yield Finding(
            "eviction",
            f"The server runs with maxmemory-policy {policy}: {full} it throws away whole keys to make room: all messages of a "
            f"source, or all its dead letters, at once. This setting is for caches.",
            "Have it refuse to write instead, or give the queues a server of their own:\n"
            f"CONFIG SET maxmemory-policy noeviction\n{_KEEP_IT}",
            loses=True,
        )
    used = int(look.info("memory")["used_memory"])
    if limit and used >= NEARLY_FULL * limit:
        yield Finding(
            "memory-nearly-full",
            f"{used / 2**20:,.0f} of {limit / 2**20:,.0f} MiB (maxmemory) are in use. When it is full nothing can be published, "
            f"retried or dead-lettered: sources stand still; nothing is lost.",
            f"Look for what takes it (redis-cli --bigkeys), or allow more:\nCONFIG SET maxmemory {2 * limit}\n{_KEEP_IT}",
        )


def _of_disk(look: Look) -> Iterator[Finding]:
    told = look.info("persistence")
    names = ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
    failed = [name for name in names if told.get(name, "ok") != "ok"]
    if failed:
        yield Finding(
            "file-not-written",
            f"The server could not write to its disk the last time ({', '.join(failed)}). While it cannot, it refuses to store "
            f"anything, or what it stores is lost when it ends.",
            "Look at its log and at the room on its disk. When that is mended, try it:\nBGSAVE",
            stops=True,
        )


def _of_role(look: Look) -> Iterator[Finding]:
    told = look.info("replication")
    if told.get("role") == "slave":
        master = f"{told.get('master_host')}:{told.get('master_port')}"
        yield Finding(
            "read-only-replica",
            f"The server behind {look.shown} is a replica, which only reads: nothing can be published or consumed there.",
            f"Point the URL at its master, {master}; with sentinels it is found by itself: redis+sentinel://host:26379/name",
            stops=True,
        )


def _of_subscribing(look: Look) -> Iterator[Finding]:
    """On a connection of its own: one that is subscribed can do nothing else."""
    node = look.link.finder.connect(look.key)
    try:
        answer = node.ask([("SUBSCRIBE", owner_channel("doctor"))])[0]
    finally:
        node.close()
    if isinstance(answer, redis.ResponseError):
        user = look.link.finder.address.options.get("username") or "default"
        yield Finding(
            "cannot-subscribe",
            f"The user {user!r} may not subscribe to channels ({answer}). Then a consumer that died is noticed by its silence "
            f"only, after 30 seconds instead of at once.",
            f"Allow it, for unpoison's own channels:\nACL SETUSER {user} +@pubsub &unpoison:*",
        )
