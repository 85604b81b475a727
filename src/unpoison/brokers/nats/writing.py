"""Store messages, and know that they are stored.

Published with a reply subject: the stream that stored it answers there. A whole batch is written at once and the answers are
counted. A server that did not store a message says why; if the connection is lost first, or the time is over, it may be stored. A
copy has a `Nats-Msg-Id`, so that one which is sent again, since its answer got lost, is not stored twice.
"""

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from unpoison.brokers.nats import wire
from unpoison.brokers.nats.connection import NO_RESPONDERS, Connection
from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.port.broker import Refused

CONFIRM_TIMEOUT = 30.0
IN_FLIGHT = 1_000
IN_FLIGHT_BYTES = 4 * 1024 * 1024
WRONG_LAST_SEQUENCE = 10071


class Copy(NamedTuple):
    """A message to be stored."""

    subject: str
    block: bytes
    body: bytes


class No(NamedTuple):
    """Why a message was not stored, or is not known to be."""

    code: int
    text: str


DENIED, NO_ANSWER, NOT_SENT = -1, -2, -3
"""In place of a code of the server's: it does not permit this; it has not answered, so that the message may be stored; the
connection was lost before."""


class Batch:
    """Copies on their way. Filled in by the loop's thread."""

    def __init__(self, subjects: Iterable[str]) -> None:
        self.subjects = list(subjects)
        self._open = set(range(len(self.subjects)))
        self.refused: dict[int, No] = {}
        self.answers: dict[int, bytes] = {}
        self.done = threading.Event()

    def answered(self, number: int, block: bytes, body: bytes) -> None:
        if number not in self._open:
            return
        if block and wire.status(block) == NO_RESPONDERS:
            self.refused[number] = No(NO_RESPONDERS, "no stream takes this subject")
        elif b'"error"' in body:
            error = msgspec.json.decode(body)["error"]
            self.refused[number] = No(error.get("err_code", error.get("code", 0)), error.get("description", "no reason given"))
        else:
            self.answers[number] = body
        self._open.discard(number)
        if not self._open:
            self.done.set()

    def denied(self, why: str) -> None:
        """The subject is in the text; nothing else tells which message it was."""
        told = why.lower()
        numbers = [number for number in self._open if f'"{self.subjects[number].lower()}"' in told]
        self.refused.update(dict.fromkeys(numbers, No(DENIED, why)))
        self._open.difference_update(numbers)
        if not self._open:
            self.done.set()

    def unanswered(self, why: str) -> None:
        """It is waited no longer."""
        self.refused.update(dict.fromkeys(self._open, No(NO_ANSWER, why)))


class Writer:
    """Stores messages over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._inbox = connection.new_inbox()
        self._batches: dict[bytes, Batch] = {}
        self._numbers = itertools.count()
        connection.subscribe(self._inbox + b".*", self._answered)
        connection.when_lost(self._lost)
        connection.when_denied(self._denied)

    def store(self, copies: Sequence[Copy], answers: dict[int, bytes] | None = None) -> dict[int, No]:
        """Store these; returns why some are not, or are not known to be. Raises only if nothing was sent. `answers` is filled
        with what the server said about those that are stored."""
        refused: dict[int, No] = {}
        start = 0
        while start < len(copies):
            end, size = start, 0
            while end < len(copies) and end - start < IN_FLIGHT and size < IN_FLIGHT_BYTES:
                size += len(copies[end].body) + len(copies[end].block)
                end += 1
            try:
                batch = self._store(copies[start:end])
            except BrokerUnavailable as error:
                if start == 0:
                    raise
                refused.update(dict.fromkeys(range(start, len(copies)), No(NOT_SENT, str(error))))
                break
            refused.update((start + number, why) for number, why in batch.refused.items())
            if answers is not None:
                answers.update((start + number, answer) for number, answer in batch.answers.items())
            start = end
        return refused

    def _store(self, copies: Sequence[Copy]) -> Batch:
        name, batch = b"%d" % next(self._numbers), Batch(copy.subject for copy in copies)
        self._batches[name] = batch
        try:
            prefix = b"%s.%s-" % (self._inbox, name)
            frame = wire.publication
            self.connection.send(
                b"".join(
                    [
                        frame(copy.subject.encode(), prefix + b"%d" % number, copy.block, copy.body)
                        for number, copy in enumerate(copies)
                    ]
                )
            )
            self._wait(batch)
        finally:
            self._batches.pop(name, None)
        return batch

    def _wait(self, batch: Batch) -> None:
        ends = time.monotonic() + CONFIRM_TIMEOUT
        while not batch.done.wait(min(1.0, max(0.0, ends - time.monotonic()))):
            if time.monotonic() >= ends:
                batch.unanswered(f"NATS has not confirmed it within {CONFIRM_TIMEOUT:g} s")
                return
        if self.connection.lost is not None:
            batch.unanswered(f"NATS did not confirm it: {self.connection.lost}")

    # Called in the loop's thread.

    def _answered(self, subject: bytes, reply: bytes, block: bytes, body: bytes) -> None:
        name, _, number = subject.rpartition(b".")[2].partition(b"-")
        batch = self._batches.get(name)
        if batch is not None:
            batch.answered(int(number), block, body)

    def _denied(self, why: str) -> None:
        for batch in list(self._batches.values()):
            batch.denied(why)

    def _lost(self) -> None:
        for batch in list(self._batches.values()):
            batch.done.set()


def stored_as(answer: bytes) -> int:
    """The number under which the server has stored a message, by what it said then."""
    return int(msgspec.json.decode(answer)["seq"])


_REFUSALS = {
    DENIED: Refusal.NOT_PERMITTED,
    NOT_SENT: Refusal.NOT_SENT,
    NO_RESPONDERS: Refusal.NO_SUCH_SOURCE,
    **dict.fromkeys((10054, 10097), Refusal.TOO_LARGE),  # body, headers
    **dict.fromkeys((10077, 10047, 10028, 10023, 10002), Refusal.NO_ROOM),  # stream, disk, memory, server, account
}


def why(no: No) -> Refused | str:
    """Why it is not stored, or as text why that is not known."""
    text = no.text.rstrip(".")
    told = f"NATS did not store it: {text} (code {no.code})." if no.code > 0 else f"{text}."
    return told if no.code == NO_ANSWER else Refused(_REFUSALS.get(no.code, Refusal.OTHER), told)
