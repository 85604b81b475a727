"""How does a broker talk to Redis? Over connections that any thread may use, made anew when they were lost."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis

from unpoison.brokers.redis.explaining import explained, word
from unpoison.brokers.redis.nodes import Command, Finder, Node
from unpoison.brokers.redis.scripts import BY_SHA
from unpoison.brokers.redis.url import Address
from unpoison.errors import BrokerUnavailable

_GONE_ELSEWHERE = ("READONLY", "MOVED", "ASK", "CLUSTERDOWN", "LOADING")


class Link:
    """Connections that may be used from any thread, and are made anew when they were lost. One, or one for each node."""

    def __init__(self, address: Address) -> None:
        self.finder = Finder(address)
        self._shown = address.shown
        self._lock = threading.RLock()
        self._nodes: dict[tuple[str, int], Node] = {}
        self._is_closed = True

    def open(self, key: str) -> None:
        self._is_closed = False
        with self._lock, explained(self._shown):
            self._node(key)

    def ask(self, key: str, *commands: Command) -> list[Any]:
        """The answers to these commands, all about keys where `key` is. The first error among them is raised."""
        answers = self.try_all(key, *commands)
        with explained(self._shown):
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        return answers

    def try_all(self, key: str, *commands: Command) -> list[Any]:
        """As `ask`, with errors as values."""
        with self._lock, explained(self._shown):
            answers = self._run(key, commands)
            if self.finder.is_cluster and any(_has_moved(answer) for answer in answers):
                self._drop(key)
                self.finder.forget()
                answers = self._run(key, commands)
            if any(isinstance(answer, redis.ResponseError) and word(answer) in _GONE_ELSEWHERE for answer in answers):
                self._drop(key)
            return answers

    def ask_ahead(self, key: str, command: Command, *ahead: Command) -> Any:
        """The answer to the first. Those to the others, which the server works on meanwhile, are got by `late`."""
        with self._lock, explained(self._shown):
            node = self._node(key)
            try:
                answer = node.ask_ahead(command, ahead)
            except BaseException:
                self._drop(key)
                raise
        return self.ask(key, command)[0] if isinstance(answer, Exception) else answer

    def late(self, key: str) -> list[Any]:
        """The answers that `ask_ahead` did not wait for. Nothing if they were lost together with their connection."""
        with self._lock, explained(self._shown):
            try:
                return self._node(key).late()
            except BaseException:
                self._drop(key)
                raise

    def is_connected(self, key: str) -> bool:
        """Whether there is a connection for this key, as far as is known."""
        return self.finder.is_cluster is not None and self.finder.place(key) in self._nodes

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
                if isinstance(answer, redis.exceptions.NoScriptError):  # never loaded here, or the server was started again
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
            return self._nodes.setdefault(self.finder.place(key), node)
        place = self.finder.place(key)
        if place not in self._nodes:
            try:
                self._nodes[place] = self.finder.connect(key)
            except (redis.RedisError, OSError):
                self.finder.forget()
                raise
        return self._nodes[place]

    def _drop(self, key: str) -> None:
        with suppress(BrokerUnavailable, redis.RedisError, OSError):
            node = self._nodes.pop(self.finder.place(key), None)
            if node is not None:
                node.close()


def _has_moved(answer: Any) -> bool:
    return isinstance(answer, redis.ResponseError) and word(answer) in ("MOVED", "ASK")
