"""The dead letters that another program keeps in a list, as `LPUSH dlq:orders '{…}'` does it.

The list is opened without the source, which may belong to the other program too. A list cannot be searched and its elements have
no ids, so each look reads all of it; a letter is known by its bytes, and by its number among equal ones. Every change is one
script: of two operators only one gets a letter. What was sent is gone from the list; what was discarded is kept in
`dlq:orders:discarded`.

An empty list does not exist in Redis. So a list that a letter came from is made where no such key is.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
from redis.crc import key_slot

from unpoison.brokers.redis import foreign, scripts, sending_back
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.brokers.redis.envelope import fields_of, packed
from unpoison.brokers.redis.names import dlq_of
from unpoison.errors import PayloadError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.fingerprint import renewed
from unpoison.model.message import Message
from unpoison.port.broker import WHOLE_BYTES, Published
from unpoison.port.foreign.told import Told
from unpoison.port.reading import first_within, read_one

AT_ONCE = 1_000
"""Elements that are read in one step, if they are no more than WHOLE_BYTES together."""
FROZEN = "frozen"

Kept = TypeVar("Kept")
Elements = Mapping[str, bytes]
"""Elements by the ids of their letters, the oldest first."""


class Found(NamedTuple):
    """A letter in its list."""

    letter: DeadLetter
    target: str
    """Where it came from."""


def opened(broker: RedisBroker, source: str) -> "ListedLetters | None":
    """The DLQ of this source if it is a list; None for any other."""
    broker.connection.open(source)
    kind = broker.connection.try_all(source, ("TYPE", dlq_of(broker.address, source)))[0]
    if kind == b"list":
        return ListedLetters(broker, source)
    broker.close()
    return None


class ListedLetters:
    page = 250

    def __init__(self, broker: RedisBroker, source: str) -> None:
        self.broker, self._source = broker, source
        self._keys = broker.keys(source)
        discarded = f"{dlq_of(broker.address, source)}:discarded"
        self._lists = {"dead": dlq_of(broker.address, source), "discarded": discarded}
        self._own = (*self._keys, discarded)
        self._frozen: dict[str, dict[str, bytes]] = {}

    def count(self, state: str = "dead") -> int:
        return int(self._ask(("LLEN", self._lists[state]))) if state in self._lists else 0

    def freeze(self) -> str:
        self._frozen = {state: self._read(state, bytes) for state in self._lists}
        return FROZEN

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        states = self._lists if state is None else [state]
        found = [(each, id_, element) for each in states for id_, element in self._elements(each, until).items()]
        if only is not None:
            letters = [self._found(*each).letter for each in found if each[1] == only]
            return letters or [
                letter for each in found if (letter := self._found(*each).letter).message.id == only or _task_of(letter) == only
            ]
        ids = [id_ for _, id_, _ in found]
        first = ids.index(after) + 1 if after in ids else 0
        return [self._found(*each).letter for each in found[first : first + limit]]

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = "dead") -> Sequence[str]:
        ids = list(self._elements(state, until))
        first = ids.index(after) + 1 if after in ids else 0
        return ids[first : first + limit]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        there = self._among("dead", letter_ids)
        by_target: dict[str, dict[str, DeadLetter]] = {}
        for id_, element in there.items():
            found = self._found("dead", id_, element)
            by_target.setdefault(found.target, {})[id_] = found.letter
        sent: set[str] = set()
        for target, letters in by_target.items():
            rows = {id_: (there[id_], packed(fields_of(each.message)), each.body) for id_, each in letters.items()}
            sent |= self._take("dead", "send", target, rows)
        return [id_ for id_ in letter_ids if id_ in sent]

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        rows = {id_: (element, b"", b"") for id_, element in self._among(state, letter_ids).items()}
        done = self._take(state, "keep" if keep_as else "drop", self._lists["discarded"], rows)
        return [id_ for id_ in letter_ids if id_ in done]

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        """The first reading finds which these are, the second one keeps them."""
        sizes = self._read("dead", len)
        ids = list(sizes)
        first = ids.index(after) + 1 if after in sizes else 0
        ids = ids[first : first + limit]
        elements = self._among("dead", ids[: first_within((sizes[id_] for id_ in ids), most_bytes)])
        return [self._whole(id_, element) for id_, element in elements.items()]

    def _whole(self, id_: str, element: bytes) -> WholeLetter:
        """How an equal element is called depends on how many there are: these letters have no identity."""
        letter, target = self._found("dead", id_, element)
        carrier = None if element == letter.body else [b"body", element]
        native = sending_back.native_of(letter, fields_of(letter.message), carrier, target=target)
        return WholeLetter(letter=letter, has_identity=False, native=native)

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        return sending_back.send_back(self.broker, self._source, letters, makes_lists=True)

    # Reading.

    def _elements(self, state: str, until: str = "") -> dict[str, bytes]:
        return self._frozen.get(state, {}) if until == FROZEN else self._read(state, bytes)

    def _among(self, state: str, letter_ids: Sequence[str]) -> Elements:
        """Those of these letters that are known. Whether they are still there the script knows."""
        known = self._frozen.get(state, {})
        if not all(id_ in known for id_ in letter_ids):
            known = self._read(state, bytes, {id_.removeprefix(f"{self._source}-").partition(".")[0] for id_ in letter_ids})
        return {id_: known[id_] for id_ in letter_ids if id_ in known}

    def _read(self, state: str, kept: Callable[[bytes], Kept], digests: Collection[str] | None = None) -> dict[str, Kept]:
        """What is to be kept of each element, or of those with these digests. Programs push to either end, so the time in a
        letter decides which is older."""
        found = [
            (_told(element).last_failed_at or 0.0, digest, kept(element))
            for element in self._all(state)
            if (digest := hashlib.blake2b(element, digest_size=8).hexdigest()) and (digests is None or digest in digests)
        ]
        found.sort(key=itemgetter(0))
        numbers: Counter[str] = Counter()
        by_id = {}
        for _, digest, each in found:
            number = numbers[digest]
            by_id[f"{self._source}-{digest}{f'.{number}' if number else ''}"] = each
            numbers[digest] += 1
        return by_id

    def _all(self, state: str) -> Iterator[bytes]:
        """Everything in a list, which may be more than memory holds."""
        first = 0
        while state in self._lists:
            step = scripts.READ_LISTED((self._lists[state],), self.broker.address.group, first, AT_ONCE, WHOLE_BYTES)
            page = self._ask(step)
            if not page:
                return
            yield from page
            first += len(page)

    def _found(self, state: str, id_: str, element: bytes) -> Found:
        told = _told(element)
        carried = Message(id_.removeprefix(f"{self._source}-"), self._source, element)
        made = told.letter(carried, foreign.KIND, 0.0)
        return Found(renewed(msgspec.structs.replace(made, id=id_, state=state)), foreign.origin(self._source, told, self._own))

    # Changing.

    def _take(self, state: str, action: str, target: str, rows: Mapping[str, tuple[bytes, bytes, bytes]]) -> set[str]:
        if not rows or state not in self._lists:
            return set()
        connection, group = self.broker.connection, self.broker.address.group
        if connection.finder.is_cluster and key_slot(target.encode()) != key_slot(self._source.encode()):
            raise self._cannot(next(iter(rows)), target, "in a cluster no step can be about two keys of different slots")
        flat = (part for row in rows.values() for part in row)
        answer = self._ask(scripts.TAKE_LISTED(self._keys, group, action, *flat, more=[self._lists[state], target]))
        if not isinstance(answer, list):
            raise self._cannot(next(iter(rows)), target, foreign.no_target(answer))
        done = {id_ for id_, is_done in zip(rows, answer, strict=True) if is_done}
        frozen = self._frozen.get(state, {})
        self._frozen[state] = {id_: element for id_, element in frozen.items() if id_ not in done}
        return done

    def _cannot(self, id_: str, target: str, why: str) -> PayloadError:
        return PayloadError(
            f"Letter {id_!r} cannot be sent: it came from {target!r}, and {why}. Discard the letter: unpoison dlq discard {id_}"
        )

    def _ask(self, command: tuple[Any, ...]) -> Any:
        return self.broker.connection.ask(self._source, command)[0]


def _told(element: bytes) -> Told:
    return read_one(element, foreign.told, lambda *_: Told(rule=foreign.RULE))


def _task_of(letter: DeadLetter) -> str:
    return str(letter.original.get("task_id", ""))
