"""Connections to Redis: to one node, to the node that has a key, and one for any thread that reconnects when it was lost."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hiredis
import redis
from redis.crc import key_slot
from redis.sentinel import Sentinel

from unpoison.brokers.redis.errors import MEANINGS, explained, word
from unpoison.brokers.redis.scripts import BY_SHA
from unpoison.brokers.redis.url import Address
from unpoison.errors import BrokerUnavailable

Command = tuple[Any, ...]


class Node:
    """An open connection to one server, with the facts about that server."""

    def __init__(self, connection: Any) -> None:  # a redis.Connection, most of which comes without types
        self.connection = connection
        self._owed, self._late = 0, list[Any]()
        self.connection.connect()
        info = self._info()
        self.run = info.get("run_id", "-")
        """Changes when the server restarts; "-" if this user may not know it."""
        self.version = tuple(int(part) for part in info.get("redis_version", "0").split(".") if part.isdigit())
        self.is_cluster = info.get("redis_mode", "") == "cluster"

    def _info(self) -> dict[str, str]:
        found = self.ask([("INFO", "server")])[0]
        if isinstance(found, Exception):
            hello = self.ask([("HELLO",)])[0]
            flat = [] if isinstance(hello, Exception) else [each.decode() if isinstance(each, bytes) else "" for each in hello]
            found_by_name = dict(zip(flat[::2], flat[1::2], strict=False))
            return {"redis_version": found_by_name.get("version", "0"), "redis_mode": found_by_name.get("mode", "")}
        return dict(line.split(":", 1) for line in found.decode().splitlines() if ":" in line)

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to these commands, which are sent at once. Errors of the server are values among them."""
        self._collect_late()
        self.send(commands)
        return [self.answer() for _ in commands]

    def ask_ahead(self, command: Command, ahead: Sequence[Command]) -> Any:
        """The answer to the first command. `late` waits for the answers to the others."""
        self._collect_late()
        self.send([command, *ahead])
        answer = self.answer()
        self._owed, self._late = len(ahead), []
        return answer

    def late(self) -> list[Any]:
        """The answers that `ask_ahead` did not wait for; none if the connection was lost."""
        self._collect_late()
        found, self._late = self._late, []
        return found

    def _collect_late(self) -> None:
        while self._owed:
            self._late.append(self.answer())
            self._owed -= 1

    def send(self, commands: Sequence[Command]) -> None:
        packed = [hiredis.pack_command(command) for command in commands]
        self.connection.send_packed_command(packed if len(packed) == 1 else [b"".join(packed)], check_health=False)

    def answer(self) -> Any:
        try:
            return self.connection.read_response(disable_decoding=True, disconnect_on_error=True)
        except redis.ResponseError as error:
            return error

    def fileno(self) -> int:
        sock = self.connection._sock  # noqa: SLF001 - there is no other way to wait for it together with others
        return -1 if sock is None else int(sock.fileno())

    def close(self) -> None:
        with suppress(redis.RedisError, OSError):
            self.connection.disconnect()


class Finder:
    """Finds the server that has a key: the one in the URL, the master that sentinels name, or a node of a cluster."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.is_cluster: bool | None = None
        self._slots: list[tuple[int, int, str, int]] = []

    def connect(self, key: str) -> Node:
        """A new connection to the server that has this key."""
        if self.is_cluster is None:
            node = self._any()
            self.is_cluster = node.is_cluster
            if not node.is_cluster:
                return node
            node.close()
        if not self.is_cluster:
            return self._any()
        return Node(self.address.connection(*self.host_of(key)))

    def host_of(self, key: str) -> tuple[str, int]:
        """Host and port of the cluster node that has the slot of this key; one pair for all keys without a cluster."""
        if not self.is_cluster:
            return ("", 0)
        if not self._slots:
            self._slots = self._read_slots()
        slot = key_slot(key.encode())
        for first, last, host, port in self._slots:
            if first <= slot <= last:
                return host, port
        self._slots = []
        raise BrokerUnavailable(
            f"Redis at {self.address.shown!r}: no node has slot {slot}, that of {key!r}. {MEANINGS['CLUSTERDOWN']}"
        )

    def forget(self) -> None:
        """Slots have moved: ask the cluster again."""
        self._slots = []

    def _any(self) -> Node:
        if self.address.service is not None:
            return Node(self.address.connection(*self._master(self.address.service)))
        problem: Exception | None = None
        for host, port in self.address.hosts:
            try:
                return Node(self.address.connection(host, port))
            except (redis.ConnectionError, redis.TimeoutError) as error:
                problem = error
        raise problem or redis.ConnectionError("no host")

    def _master(self, service: str) -> tuple[str, int]:
        timeouts = {name: self.address.options[name] for name in ("socket_timeout", "socket_connect_timeout")}
        sentinel = Sentinel(self.address.hosts, sentinel_kwargs=timeouts | self.address.sentinel_options)  # type: ignore[no-untyped-call]
        try:
            host, port = sentinel.discover_master(service)  # type: ignore[no-untyped-call]
        finally:
            for each in sentinel.sentinels:
                each.close()
        return str(host), int(port)

    def _read_slots(self) -> list[tuple[int, int, str, int]]:
        node = self._any()
        try:
            found = node.ask([("CLUSTER", "SLOTS")])[0]
            if isinstance(found, Exception):
                raise found
            here = node.connection.host
            return [(first, last, master[0].decode() or here, master[1]) for first, last, master, *_ in found]
        finally:
            node.close()


_WRONG_NODE = ("READONLY", "MOVED", "ASK", "CLUSTERDOWN", "LOADING")


class Connection:
    """Connections that any thread may use: one, or one for each node. They reconnect when they were lost."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.finder = Finder(address)
        self._shown = address.shown
        self._lock = threading.RLock()
        self._nodes: dict[tuple[str, int], Node] = {}
        self._is_closed = True

    def open(self, key: str) -> None:
        self._is_closed = False
        self.node(key)

    def ask(self, key: str, *commands: Command) -> list[Any]:
        """The answers to these commands about keys on the node of `key`. Raises the first error among them."""
        answers = self.try_all(key, *commands)
        with explained(self._shown):
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        return answers

    def try_all(self, key: str, *commands: Command) -> list[Any]:
        """The same as `ask`, with errors as values."""
        with self._lock, explained(self._shown):
            answers = self._run(key, commands)
            if self.finder.is_cluster and any(_has_moved(answer) for answer in answers):
                self._drop(key)
                self.finder.forget()
                answers = self._run(key, commands)
            if any(isinstance(answer, redis.ResponseError) and word(answer) in _WRONG_NODE for answer in answers):
                self._drop(key)
            return answers

    def ask_ahead(self, key: str, command: Command, *ahead: Command) -> Any:
        """The answer to the first command. `late` gets the answers to the others; the server works on them meanwhile."""
        with self._lock, explained(self._shown):
            node = self._node(key)
            try:
                answer = node.ask_ahead(command, ahead)
            except BaseException:
                self._drop(key)
                raise
        return self.ask(key, command)[0] if isinstance(answer, Exception) else answer

    def late(self, key: str) -> list[Any]:
        """The answers that `ask_ahead` did not wait for; none if the connection was lost."""
        with self._lock, explained(self._shown):
            try:
                return self._node(key).late()
            except BaseException:
                self._drop(key)
                raise

    def is_connected(self, key: str) -> bool:
        """Whether there is an open connection for this key, as far as known."""
        return self.finder.is_cluster is not None and self.finder.host_of(key) in self._nodes

    def node(self, key: str) -> Node:
        with self._lock, explained(self._shown):
            return self._node(key)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for node in self._nodes.values():
                node.close()
            self._nodes.clear()

    def _run(self, key: str, commands: Sequence[Command]) -> list[Any]:
        node = self._node(key)
        try:
            answers = node.ask(commands)
            for n, answer in enumerate(answers):
                if isinstance(answer, redis.exceptions.NoScriptError):  # never loaded here, or the server restarted
                    node.ask([("SCRIPT", "LOAD", BY_SHA[commands[n][1]].text)])
                    answers[n] = node.ask([commands[n]])[0]
        except BaseException:
            self._drop(key)
            raise
        return answers

    def _node(self, key: str) -> Node:
        if self._is_closed:
            raise BrokerUnavailable(f"Redis at {self._shown!r} is not open. Call open() first.")
        if self.finder.is_cluster is None:
            node = self.finder.connect(key)
            return self._nodes.setdefault(self.finder.host_of(key), node)
        host = self.finder.host_of(key)
        if host not in self._nodes:
            try:
                self._nodes[host] = self.finder.connect(key)
            except (redis.RedisError, OSError):
                self.finder.forget()
                raise
        return self._nodes[host]

    def _drop(self, key: str) -> None:
        with suppress(BrokerUnavailable, redis.RedisError, OSError):
            node = self._nodes.pop(self.finder.host_of(key), None)
            if node is not None:
                node.close()


def _has_moved(answer: Any) -> bool:
    return isinstance(answer, redis.ResponseError) and word(answer) in ("MOVED", "ASK")
