"""The DLQ of a source in Redis.

Dead letters are in the stream `dlq:<source>`; the latest that were replayed or discarded are kept beside it. Every change is one
script that first checks the state of the letter: of two operators only one gets it.
"""

from collections.abc import Collection, Sequence
from typing import Any

from redis.crc import key_slot

from unpoison.brokers.redis import envelope, foreign, scripts
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.brokers.redis.envelope import by_name, letter_of, number, packed, padded
from unpoison.brokers.redis.names import DISCARDED, DLQ, REPLAYED
from unpoison.errors import PayloadError
from unpoison.model.dead_letter import DeadLetter
from unpoison.port.serialization import counters_text

HISTORY = 10_000
"""How many replayed letters are kept, and how many discarded ones."""

AT_ONCE = 250
"""How many letters are read from the server, or sent to it, in one step."""

_HIGHEST = f"{2**64 - 1}-{2**64 - 1}"

LetterEntry = tuple[bytes, str, Sequence[bytes]]
"""Number, state and fields of a letter."""


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
        return f"{self._source}-{by_name(answer)[b'last-generated-id'].decode()}"

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        if only is None:
            found = self._entries(state or "", self._between(after, until), limit)
        else:
            exact = number(self._source, only)
            found = [entry for entry in self._exactly(exact) if state in (None, entry[1])] if exact else []
            found = found or self._with_message(only.encode(), state)
        return [letter_of(self._source, *entry) for entry in found]

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = "dead") -> Sequence[str]:
        found = self._entries(state, self._between(after, until), limit, only_ids=True)
        return [f"{self._source}-{no.decode()}" for no, _, _ in found]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """Letters go to the server with their bodies, a part at a time; each part is one step."""
        parts = (letter_ids[first : first + AT_ONCE] for first in range(0, len(letter_ids), AT_ONCE))
        return [id_ for part in parts for id_ in self._replay(part)]

    def _replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        by_group: dict[str, list[Any]] = {}
        elsewhere: dict[str, list[Any]] = {}
        for no, state, fields in self._dead(letter_ids):
            letter = letter_of(self._source, no, state, fields)
            told = envelope.told_by(self._source, no, fields)
            counters, original = letter.replayed(), envelope.original_of(letter.message, fields, told)
            target = self._source if told is None else foreign.origin(self._source, told, self._keys)
            place = [no, padded(no.decode()), packed(fields)]
            if target != self._source:
                elsewhere.setdefault(target, []).extend([*place, packed(original), letter.body])
                continue
            blob = envelope.blob_of_message(letter.message, original)
            row = [*place, b"r" + no, blob, counters_text(counters), int(counters.alone)]
            by_group.setdefault(envelope.group_of(fields, self.broker.address.group), []).extend(row)
        sent = {no for target, rows in elsewhere.items() for no in self._sent_elsewhere(target, rows)}
        for group, rows in by_group.items():
            sent |= set(self._ask(scripts.REPLAY(self.broker.keys(self._source, group), group, HISTORY, *rows)))
        return self._among(letter_ids, sent)

    def _sent_elsewhere(self, target: str, rows: Sequence[Any]) -> Collection[bytes]:
        """Letters of other programs go to the stream or list that they came from."""
        if self.broker.connection.finder.is_cluster and key_slot(target.encode()) != key_slot(self._source.encode()):
            why = "in a cluster no step can be about two keys of different slots"
        else:
            group = self.broker.address.group
            answer = self._ask(scripts.SEND_ELSEWHERE(self._keys, group, HISTORY, *rows, more=[target]))
            if isinstance(answer, list):
                return answer
            why = "there is no such key" if answer == b"none" else f"it is neither a stream nor a list, but a {answer.decode()}"
        id_ = f"{self._source}-{rows[0].decode()}"
        raise PayloadError(
            f"Letter {id_!r} cannot be sent: it came from {target!r}, and {why}. Discard the letter: unpoison dlq discard {id_}"
        )

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        if state == "dead" and keep_as:
            rows = [(no, padded(no.decode()), packed(fields)) for no, _, fields in self._dead(letter_ids)]
        else:
            rows = [(no.encode(), padded(no), b"") for no in self._numbers(letter_ids)]
        if not rows:
            return []
        flat = (part for row in rows for part in row)
        command = scripts.REMOVE(self._keys, self.broker.address.group, state, int(bool(keep_as)), HISTORY, *flat)
        return self._among(letter_ids, set(self._ask(command)))

    def _numbers(self, letter_ids: Sequence[str]) -> list[str]:
        return [no for no in (number(self._source, id_) for id_ in letter_ids) if no]

    def _among(self, letter_ids: Sequence[str], numbers: Collection[bytes]) -> list[str]:
        """Those of the ids that have one of these numbers."""
        return [id_ for id_ in letter_ids if (number(self._source, id_) or "").encode() in numbers]

    def _with_message(self, id_: bytes, state: str | None) -> list[LetterEntry]:
        """Letters of the message with this id. The server finds letters only by number, so all are read."""
        found: list[LetterEntry] = []
        after = "0-0"
        while page := self._entries(state or "", (after, _HIGHEST), AT_ONCE):
            found += [entry for entry in page if (by_name(entry[2]).get(b"id") or entry[0]) == id_]  # as `letter_of` reads it
            after = page[-1][0].decode()
        return found

    def _dead(self, letter_ids: Sequence[str]) -> list[LetterEntry]:
        """The entries of these letters that are still dead, in the order of the ids. An entry never changes."""
        questions = [("XRANGE", self._keys[DLQ], no, no) for no in self._numbers(letter_ids)]
        pages = self.broker.connection.ask(self._source, *questions) if questions else []
        return [(no, "dead", fields) for page in pages for no, fields in page]

    def _exactly(self, no: str) -> list[LetterEntry]:
        first, second = map(int, no.split("-"))
        before = f"{first}-{second - 1}" if second else f"{first - 1}-{2**64 - 1}" if first else "0-0"
        return self._entries("", (before, no), 1)

    def _between(self, after: str, until: str) -> tuple[str, str]:
        return number(self._source, after) or "0-0", number(self._source, until) or _HIGHEST

    def _entries(self, state: str, between: tuple[str, str], limit: int, *, only_ids: bool = False) -> list[LetterEntry]:
        """Letters above the first number and up to the second, in the order they came."""
        command = scripts.BROWSE(
            self._keys, self.broker.address.group, state, *between, *map(padded, between), limit, int(only_ids)
        )
        found = [_entry(*row) for row in self._ask(command)]
        return sorted(found, key=lambda entry: envelope.position_of(entry[0]))[:limit]

    def _ask(self, command: tuple[Any, ...]) -> Any:
        return self.broker.connection.ask(self._source, command)[0]


def _entry(state: bytes, no: bytes, fields: Any) -> LetterEntry:
    if state == b"dead":
        return no, "dead", fields
    return envelope.unpadded(no), state.decode(), envelope.unpacked(fields)
