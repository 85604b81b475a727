"""Read a stream without changing anything.

Through a consumer for the moment, which acknowledges nothing. Older servers miscount for such a one once messages were
deleted: there each message is asked for by itself.
"""

import threading
from base64 import b64decode
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from unpoison.brokers.nats import wire
from unpoison.brokers.nats.client import moment
from unpoison.brokers.nats.connection import ANSWER_TIMEOUT, NO_MESSAGE, Connection, Refused
from unpoison.brokers.nats.envelope import Place, pairs, place
from unpoison.brokers.nats.names import fits
from unpoison.brokers.nats.subscription import FORGETS_SINCE
from unpoison.errors import BrokerUnavailable
from unpoison.port.reading import first_within

AT_ONCE = 250
"""Messages of one page, bodies included."""
SECOND = 1_000_000_000
"""As the server counts time. So long it is waited for messages that were counted and have been deleted since."""


class Looked(NamedTuple):
    """A message where it is kept."""

    subject: str
    place: Place
    block: bytes
    body: bytes


def read(
    connection: Connection, stream: str, subjects: str, *, start: int = 1, limit: int | None = None, bodies: bool = True
) -> list[Looked]:
    """The messages on these subjects from number `start` on, in their order."""
    return [each for page in pages(connection, stream, subjects, start=start, limit=limit, bodies=bodies) for each in page]


def pages(
    connection: Connection, stream: str, subjects: str, *, start: int = 1, limit: int | None = None, bodies: bool = True
) -> Iterator[list[Looked]]:
    """The same, page by page: all of them may be more than memory holds."""
    if connection.version < FORGETS_SINCE:
        yield _one_by_one(connection, stream, subjects, start, limit)
        return
    with _consumer(connection, stream, subjects, start, bodies) as (made, there):
        left = there if limit is None else min(limit, there)
        while left > 0:
            wanted = min(AT_ONCE, left)
            part = _Look(connection, f"{stream}.{made}", wanted).wait()
            yield part
            if len(part) < wanted:
                break
            left -= wanted


def within(
    connection: Connection, stream: str, subjects: str, without: Collection[int], *, start: int, limit: int, most_bytes: int
) -> list[Looked]:
    """The same up to the one whose body makes them more than so many bytes; those with the numbers `without` are left out."""
    if connection.version < FORGETS_SINCE:
        return _within_by_steps(connection, stream, subjects, without, start, limit, most_bytes)
    known = read(connection, stream, subjects, start=start, limit=limit + len(without), bodies=False)
    there = [each for each in known if each.place.number not in without][:limit]
    numbers = [each.place.number for each in there[: first_within(map(_size, there), most_bytes)]]
    if not numbers:
        return []
    wanted = sum(numbers[0] <= each.place.number <= numbers[-1] for each in known)
    found = read(connection, stream, subjects, start=numbers[0], limit=wanted)
    chosen = set(numbers)
    return [each for each in found if each.place.number in chosen]  # if some are gone by now, others came up in their place


def _size(shown: Looked) -> int:
    """The bytes of a body that was left out: the server writes them behind all other headers."""
    name, value = pairs(shown.block)[-1]
    return int(value) if name == b"Nats-Msg-Size" else 0


def count(connection: Connection, stream: str, subjects: str) -> int:
    """How many messages there are on these subjects."""
    if "*" in subjects and connection.version >= FORGETS_SINCE:
        # Anything else would name each subject, and letters that were dealt with have one each.
        with _consumer(connection, stream, subjects, 1, bodies=False) as (_, there):
            return int(there)
    found, named = 0, 0
    while True:
        question = {"subjects_filter": subjects, "offset": named}
        answer = connection.ask(f"STREAM.INFO.{stream}", question, f"counting messages in stream {stream}")
        part = answer["state"].get("subjects") or {}
        found, named = found + sum(part.values()), named + len(part)
        if not part or named >= answer.get("total", 0):
            return int(found)


@contextmanager
def _consumer(connection: Connection, stream: str, subjects: str, start: int, bodies: bool) -> Iterator[tuple[str, int]]:
    """A consumer for the moment: its name, and how many messages there are for it."""
    config = {
        "ack_policy": "none",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(1, start),
        "filter_subject": subjects,
        "headers_only": not bodies,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 60 * SECOND,
    }
    what = f"reading stream {stream}"
    answer = connection.ask(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config}, what)
    try:
        yield answer["name"], answer["num_pending"]
    finally:
        with suppress(BrokerUnavailable):  # the server deletes it by itself, later
            connection.ask(f"CONSUMER.DELETE.{stream}.{answer['name']}", what=what)


def _within_by_steps(
    connection: Connection, stream: str, subjects: str, without: Collection[int], start: int, limit: int, most_bytes: int
) -> list[Looked]:
    """No size is known before: a step reads so few messages that the largest ones there can be are within the limit."""
    at_once, left = max(1, min(AT_ONCE, most_bytes // connection.max_payload)), most_bytes
    found: list[Looked] = []
    for part in _steps(connection, stream, subjects, start, at_once):
        for each in part:
            if each.place.number not in without:
                found.append(each)
                left -= max(1, len(each.body))
            if left <= 0 or len(found) == limit:
                return found
    return found


def _one_by_one(connection: Connection, stream: str, subjects: str, start: int, limit: int | None) -> list[Looked]:
    found: list[Looked] = []
    for part in _steps(connection, stream, subjects, start, AT_ONCE):
        found += part
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]


def _steps(connection: Connection, stream: str, subjects: str, start: int, at_once: int) -> Iterator[list[Looked]]:
    """Every number there is: what they know of a subject is wrong too, once messages were deleted from the middle."""
    state = connection.ask(f"STREAM.INFO.{stream}", what=f"reading stream {stream}")["state"]
    first = max(start, state["first_seq"], 1)
    for number in range(first, state["last_seq"] + 1, at_once):
        questions = [(f"STREAM.MSG.GET.{stream}", {"seq": number + more}) for more in range(at_once)]
        found: list[Looked] = []
        for answer in connection.ask_each(questions, f"reading stream {stream}"):
            if isinstance(answer, Refused):
                if answer.code != NO_MESSAGE:
                    raise answer
            elif fits(answer["message"]["subject"], subjects):
                found.append(looked(stream, answer["message"]))
        yield found


def looked(stream: str, message: Any) -> Looked:
    where = Place(stream, "", 1, message["seq"], 0, int(moment(message["time"]) * 1e9))
    block, body = (b64decode(message.get(part, "")) for part in ("hdrs", "data"))
    return Looked(message["subject"], where, block, body)


class _Look:
    """One page."""

    def __init__(self, connection: Connection, consumer: str, wanted: int) -> None:
        self._connection, self._wanted = connection, wanted
        self._found: list[Looked] = []
        self._done = threading.Event()
        inbox = connection.new_inbox()
        self._number = connection.subscribe(inbox, self._arrived)
        endpoint = f"{connection.address.api}.CONSUMER.MSG.NEXT.{consumer}".encode()
        connection.send(wire.publication(endpoint, inbox, b"", msgspec.json.encode({"batch": wanted, "expires": SECOND})))
        connection.when_lost(self._done.set)

    def wait(self) -> list[Looked]:
        in_time = self._done.wait(ANSWER_TIMEOUT)
        if self._connection.is_open:
            self._connection.unsubscribe(self._number)
            self._connection.forget(self._number)
        if not in_time or not self._connection.is_open:
            why = self._connection.lost or f"nothing came within {ANSWER_TIMEOUT:g} s"
            raise BrokerUnavailable(f"NATS did not hand out what is in the stream: {why}.")
        return self._found

    def _arrived(self, subject: bytes, reply: bytes, block: bytes, body: bytes) -> None:
        if reply:
            self._found.append(Looked(subject.decode(), place(reply), block, body))
        if not reply or len(self._found) == self._wanted:
            self._done.set()
