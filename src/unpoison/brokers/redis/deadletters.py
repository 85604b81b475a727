"""The DLQ of a source in Redis.

Dead letters are in the stream `dlq:<source>`; the latest that were replayed or discarded are kept beside it. Every change is one
script that first checks the state of the letter: of two operators only one gets it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from unpoison.brokers.redis import scripts
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.brokers.redis.envelope import (
    blob_of_message,
    group_of,
    letter_of,
    number,
    original_of,
    packed,
    padded,
    position_of,
    unpacked,
    unpadded,
)
from unpoison.brokers.redis.names import DISCARDED, DLQ, REPLAYED
from unpoison.model.dead_letter import DeadLetter
from unpoison.port import serialization

HISTORY = 10_000
"""How many replayed letters are kept, and how many discarded ones."""

AT_ONCE = 250
"""How many letters are read from the server, or sent to it, in one step."""

_HIGHEST = f"{2**64 - 1}-{2**64 - 1}"

LetterEntry = tuple[str, bytes, Sequence[bytes]]
"""State, number and fields of a letter."""


class RedisDeadLetters:
    """The DLQ of one source."""

    def __init__(self, broker: RedisBroker, source: str) -> None:
        self.broker, self._source = broker, source
        self._keys = broker.keys(source)

    def count(self, state: str = "dead") -> int:
        commands = {
            "dead": ("XLEN", self._keys[DLQ]),
            "replayed": ("ZCARD", self._keys[REPLAYED]),
            "discarded": ("ZCARD", self._keys[DISCARDED]),
        }
        return int(self._ask(commands[state])) if state in commands else 0

    def freeze(self) -> str:
        """The newest id that was ever given; the stream knows it even when it is empty."""
        answer = self.broker.connection.try_all(self._source, ("XINFO", "STREAM", self._keys[DLQ]))[0]
        if isinstance(answer, Exception):  # there is no DLQ yet
            return f"{self._source}-0-0"
        info = dict(zip(answer[::2], answer[1::2], strict=True))
        return f"{self._source}-{info[b'last-generated-id'].decode()}"

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        low, high = number(self._source, after) or "0-0", number(self._source, until) or _HIGHEST
        if only is not None:
            exact = number(self._source, only)
            found = self._exactly(exact) if exact else []
            found = [entry for entry in found if state in (None, entry[0])]
            return [_letter(self._source, entry) for entry in found or self._with_message(only.encode(), state)]
        return [_letter(self._source, entry) for entry in self._entries(state or "", low, high, limit)]

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = "dead") -> Sequence[str]:
        low, high = number(self._source, after) or "0-0", number(self._source, until) or _HIGHEST
        return [f"{self._source}-{no.decode()}" for _, no, _ in self._entries(state, low, high, limit, only_ids=True)]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """Letters go to the server with their bodies, a part at a time; each part is one step."""
        return [id_ for part in _parts(letter_ids) for id_ in self._replay(part)]

    def _replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        by_group: dict[str, list[Any]] = {}
        for entry in self._dead(letter_ids):
            letter, (_, no, fields) = _letter(self._source, entry), entry
            counters = letter.replayed()
            blob = blob_of_message(letter.message, original_of(letter.message, fields))
            row = [
                no,
                padded(no.decode()),
                packed(fields),
                b"r" + no,
                blob,
                serialization.counters_text(counters),
                int(counters.alone),
            ]
            by_group.setdefault(group_of(fields, self.broker.address.group), []).extend(row)
        sent = set()
        for group, rows in by_group.items():
            sent |= set(self._ask(scripts.REPLAY(self.broker.keys(self._source, group), group, HISTORY, *rows)))
        return [id_ for id_ in letter_ids if (number(self._source, id_) or "").encode() in sent]

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        rows: list[Any] = []
        if state == "dead" and keep_as:
            for _, no, fields in self._dead(letter_ids):
                rows += [no, padded(no.decode()), packed(fields)]
        else:
            for known in filter(None, (number(self._source, id_) for id_ in letter_ids)):
                rows += [known, padded(known), b""]
        if not rows:
            return []
        command = scripts.REMOVE(self._keys, self.broker.address.group, state, int(bool(keep_as)), HISTORY, *rows)
        changed = set(self._ask(command))
        return [id_ for id_ in letter_ids if (number(self._source, id_) or "").encode() in changed]

    def _with_message(self, id_: bytes, state: str | None) -> list[LetterEntry]:
        """Letters of the message with this id. The server finds letters only by number, so all are read."""
        found: list[LetterEntry] = []
        after = "0-0"
        while page := self._entries(state or "", after, _HIGHEST, AT_ONCE):
            found += [entry for entry in page if _message_id(entry) == id_]
            after = page[-1][1].decode()
        return found

    def _dead(self, letter_ids: Sequence[str]) -> list[LetterEntry]:
        """The entries of these letters that are still dead, in the order of the ids. An entry never changes."""
        numbers = [no for no in (number(self._source, id_) for id_ in letter_ids) if no]
        if not numbers:
            return []
        pages = self.broker.connection.ask(self._source, *(("XRANGE", self._keys[DLQ], no, no) for no in numbers))
        return [("dead", no, fields) for page in pages for no, fields in page]

    def _exactly(self, no: str) -> list[LetterEntry]:
        first, second = map(int, no.split("-"))
        before = f"{first}-{second - 1}" if second else f"{first - 1}-{2**64 - 1}" if first else "0-0"
        return self._entries("", before, no, 1)

    def _entries(self, state: str, low: str, high: str, limit: int, *, only_ids: bool = False) -> list[LetterEntry]:
        """Letters after `low` and up to `high`, in the order they came."""
        between = (low, high, padded(low), padded(high), limit)
        command = scripts.BROWSE(self._keys, self.broker.address.group, state, *between, int(only_ids))
        found = [_entry(*row) for row in self._ask(command)]
        return sorted(found, key=lambda entry: position_of(entry[1]))[:limit]

    def _ask(self, command: tuple[Any, ...]) -> Any:
        return self.broker.connection.ask(self._source, command)[0]


def _parts(letter_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(letter_ids), AT_ONCE):
        yield letter_ids[first : first + AT_ONCE]


def _message_id(entry: LetterEntry) -> bytes:
    """As `letter_of` reads it."""
    _, no, fields = entry
    return dict(zip(fields[::2], fields[1::2], strict=False)).get(b"id") or no


def _entry(state: bytes, no: bytes, fields: Any) -> LetterEntry:
    if state == b"dead":
        return "dead", no, fields
    return state.decode(), unpadded(no), unpacked(fields)


def _letter(source: str, entry: LetterEntry) -> DeadLetter:
    state, no, fields = entry
    return letter_of(source, no, state, fields)
