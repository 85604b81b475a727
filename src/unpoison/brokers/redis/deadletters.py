"""The DLQ of a source in Redis.

Dead letters are in the stream `dlq:<source>`; the latest that were replayed or discarded are kept beside it. Every change is one
script that first checks the state of the letter: of two operators only one gets it.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from redis.crc import key_slot

from unpoison.brokers.redis import envelope, foreign, scripts, sending_back
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.brokers.redis.envelope import by_name, letter_of, number, number_again, packed, padded
from unpoison.brokers.redis.names import DISCARDED, DLQ, REPLAYED
from unpoison.brokers.redis.sending_back import AT_ONCE, AT_ONCE_BYTES
from unpoison.errors import PayloadError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import WHOLE_BYTES, Published
from unpoison.port.foreign.told import Told

HISTORY = 10_000
"""How many replayed letters are kept, and how many discarded ones."""

_HIGHEST = f"{2**64 - 1}-{2**64 - 1}"

LetterEntry = tuple[bytes, str, Sequence[bytes]]
"""Number, state and fields of a letter."""


class Read(NamedTuple):
    """A letter in its entry, with what is needed to send its message."""

    letter: DeadLetter
    fields: Sequence[bytes]
    """Those of the message."""
    group: str
    target: str
    """The stream or list that it came from."""
    told: Told | None


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
        return [self._shown(entry) for entry in found]

    def _shown(self, entry: LetterEntry) -> DeadLetter:
        return letter_of(self._source, *entry)

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
        for entry in self._dead(letter_ids):
            no, _, fields = entry
            found = self._read(entry)
            place = [no, padded(no.decode()), packed(fields)]
            if found.target != self._source:
                elsewhere.setdefault(found.target, []).extend([*place, packed(found.fields), found.letter.body])
                continue
            row = [*place, number_again(no), *envelope.started_again(found.letter, found.fields)]
            by_group.setdefault(found.group, []).extend(row)
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
            why = foreign.no_target(answer)
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

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        found: list[WholeLetter] = []
        last = number(self._source, after) or "0-0"
        while len(found) < limit and most_bytes > 0:
            at_once = min(most_bytes, AT_ONCE_BYTES)
            page = self._ask(scripts.WHOLE(self._keys, self.broker.address.group, last, limit - len(found), at_once))
            if not page:
                break
            for no, fields in page:
                found.append(self._whole(no, fields))
                most_bytes -= max(1, len(found[-1].letter.body))
                last = no.decode()
        return found

    def _whole(self, no: bytes, fields: Sequence[bytes]) -> WholeLetter:
        read = self._read((no, "dead", fields))
        target = "" if read.target == self._source else read.target
        carrier = None if read.told is None or read.told.content is None else fields
        native = sending_back.native_of(read.letter, read.fields, carrier, no=no, group=read.group, target=target)
        return WholeLetter(letter=read.letter, headers=envelope.headers_of(fields), native=native)

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        return sending_back.send_back(self.broker, self._source, letters)

    def _read(self, entry: LetterEntry) -> Read:
        no, _, fields = entry
        letter, told = letter_of(self._source, *entry), envelope.told_by(self._source, no, fields)
        target = self._source if told is None else foreign.origin(self._source, told, self._keys)
        original = envelope.original_of(letter.message, fields, told)
        return Read(letter, original, envelope.group_of(fields, self.broker.address.group), target, told)

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
