"""Which letters is an operator about to deal with?

A claim is a message under a subject of its letter, and the server refuses a second one there. An operator with claims answers
under a name of its own, so that others know whether it still lives.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from unpoison.brokers.nats import envelope, wire
from unpoison.brokers.nats.client import Client
from unpoison.brokers.nats.connection import NO_RESPONDERS, Connection
from unpoison.brokers.nats.names import Names
from unpoison.brokers.nats.stream_reading import Looked, count, read
from unpoison.brokers.nats.writing import WRONG_LAST_SEQUENCE, Copy
from unpoison.errors import BrokerUnavailable
from unpoison.port.copying.ids import unique

FIRST = envelope.line(b"Nats-Expected-Last-Subject-Sequence", 0)
"""Stored only if nothing was stored under this subject before."""


class Claim(NamedTuple):
    state: str
    """What is to be done with the letter."""
    operator: str
    stored: int
    """The number of the claim itself in the stream."""


class Claims:
    """The claims on letters of one DLQ."""

    def __init__(self, client: Client, source: str) -> None:
        self._client, self._source = client, source
        self._me: tuple[Connection, str] | None = None

    @property
    def _names(self) -> Names:
        return self._client.topic(self._source).names

    @property
    def _all(self) -> str:
        return f"{self._names.claim}.*"

    def there(self) -> dict[int, Claim]:
        """All that are there, by letter."""
        connection, stream = self._client.connection(), self._names.dlq
        if not count(connection, stream, self._all):
            return {}
        found = {}
        for each in read(connection, stream, self._all):
            state, _, operator = each.body.decode("utf-8", "replace").partition(" ")
            found[letter_number(each)] = Claim(state, operator, each.place.number)
        return found

    def take(self, numbers: Sequence[int], state: str) -> list[int]:
        """Claim these letters; returns those that nobody else had claimed."""
        block, text = envelope.block([FIRST]), f"{state} {self._operator()}".encode()
        refused = store_first(self._client, self._names, [Copy(f"{self._names.claim}.{no}", block, text) for no in numbers])
        return [no for index, no in enumerate(numbers) if index not in refused]

    def release(self, numbers: Collection[int]) -> None:
        """Remove the claims on these letters: in one request if there are no others, else one by one."""
        if not numbers:
            return
        connection, stream = self._client.connection(), self._names.dlq
        # Asked for first: a claim that is stored after this is not touched, and one stored before it is counted.
        last = connection.ask(f"STREAM.INFO.{stream}", what="looking at claims")["state"]["last_seq"]
        if count(connection, stream, self._all) == len(numbers):
            connection.ask(f"STREAM.PURGE.{stream}", {"filter": self._all, "seq": last + 1}, "removing claims")
            return
        questions = [(f"STREAM.PURGE.{stream}", {"filter": f"{self._names.claim}.{no}"}) for no in numbers]
        connection.ask_all(questions, "removing claims")

    def is_there(self, operator: str) -> bool:
        """Whether this operator still lives."""
        if self._me is not None and operator == self._me[1]:
            return False  # what is left of our own was cut off by an error
        block, _ = self._client.connection().request(_asked(operator), b"", "asking for another operator")
        return wire.status(block) != NO_RESPONDERS

    def _operator(self) -> str:
        """The name under which this one answers, for as long as its connection lasts."""
        connection = self._client.connection()
        if self._me is None or self._me[0] is not connection:
            name = unique()
            connection.subscribe(_asked(name), lambda _, reply, __, ___: connection.answer(reply, b"here"))
            self._me = (connection, name)
        return self._me[1]


def store_first(client: Client, names: Names, copies: Sequence[Copy]) -> set[int]:
    """Store each unless its subject has something; returns those that were stored before."""
    refused = client.store(copies)
    failed = [why for why in refused.values() if why.code != WRONG_LAST_SEQUENCE]
    if failed:
        raise BrokerUnavailable(f"Nothing was taken from {names.dlq!r}: NATS refuses to store there: {failed[0].text}.")
    return set(refused)


def letter_number(looked: Looked) -> int:
    """The letter that a claim, a replay or a discard is about: the last part of its subject."""
    text = looked.subject.rpartition(".")[2]
    return int(text) if text.isdigit() else 0


def _asked(operator: str) -> bytes:
    return f"unpoison.operator.{operator}".encode()
