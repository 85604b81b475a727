"""How is a message sent when the DLQ no longer has its letter?

It goes where a replay puts it: to the waiting messages of the group that gave it up, which no other group sees; one of another
program to the stream or list that it came from. Each step is one script about one place. Where a message comes from another slot
of a cluster, that is possible too: nothing has to be changed in the DLQ.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import redis

from unpoison.brokers.redis import envelope, foreign, scripts
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.brokers.redis.connection import Command
from unpoison.brokers.redis.errors import refused
from unpoison.brokers.redis.url import is_group
from unpoison.errors import BrokerUnavailable, PayloadError, Refusal
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import STORED, Published, Refused, not_sent
from unpoison.port.reading import as_text, first_within, read_one

AT_ONCE = 250
AT_ONCE_BYTES = 4 * 1024 * 1024
"""How many letters, and how many bytes of them, the server reads or takes in one step: it serves nobody else then."""


class Native(msgspec.Struct, array_like=True):
    """What only this adapter reads of a letter that is elsewhere."""

    no: bytes
    """The number of its entry."""
    group: str
    target: str
    """The stream or list that the message came from; empty if that is the group's source."""
    fields: list[bytes | None]
    """Those of the message. None stands for the body of the letter."""
    carrier: list[bytes] | None = None
    """The entry that another program put into the DLQ, if the message is inside of it: it may say more than the letter shows."""

    def message(self, letter: DeadLetter) -> list[bytes]:
        """The fields of the message, with its body."""
        return [letter.body if each is None else each for each in self.fields]


def native_of(
    letter: DeadLetter,
    fields: Sequence[bytes],
    carrier: Sequence[bytes] | None,
    *,
    no: bytes = b"",
    group: str = "",
    target: str = "",
) -> bytes:
    """What is to be kept of a letter whose message has these fields."""
    pairs = zip(fields[::2], fields[1::2], strict=False)
    kept = [part for name, value in pairs for part in (name, None if (name, value) == (b"body", letter.body) else value)]
    return msgspec.msgpack.encode(Native(no, group, target, kept, None if carrier is None else list(carrier)))


def send_back(broker: RedisBroker, source: str, letters: Sequence[WholeLetter], *, makes_lists: bool = False) -> Published:
    """Send the messages of these, in portions. A list that they came from may be empty, and then is no key, if `makes_lists`."""
    broker.connection.node(source)  # a failure here is certain: nothing was sent
    sender = Sender(broker, source, makes_lists=makes_lists)
    start = 0
    while start < len(letters):
        sizes = (len(each.letter.body) + len(each.native or b"") for each in letters[start : start + AT_ONCE])
        end = start + first_within(sizes, AT_ONCE_BYTES)
        sender.send({number: letters[number] for number in range(start, end)})
        start = end
    return Published(sender.refused, sender.unknown) if sender.refused or sender.unknown else STORED


class Row(NamedTuple):
    """A message on its way: to a group, or to another key."""

    group: str
    target: str
    arguments: list[Any]


class Sender:
    """Sends messages of letters, and knows of each that was not sent why."""

    def __init__(self, broker: RedisBroker, source: str, *, makes_lists: bool) -> None:
        self._broker, self._source, self._makes_lists = broker, source, makes_lists
        self._down: Refused | None = None
        self.refused: dict[int, Refused] = {}
        self.unknown: dict[int, str] = {}

    def send(self, letters: Mapping[int, WholeLetter]) -> None:
        by_place: dict[tuple[str, str], dict[int, list[Any]]] = {}
        for number, each in letters.items():
            row = read_one(each, _row, _unreadable)
            if isinstance(row, Refused):
                self.refused[number] = row
            else:
                by_place.setdefault((row.group, row.target), {})[number] = row.arguments
        for (group, target), rows in by_place.items():
            for number, told in zip(rows, self._sent(group, target, list(rows.values())), strict=True):
                if isinstance(told, Refused):
                    self.refused[number] = told
                elif told is not None:
                    self.unknown[number] = told

    def _sent(self, group: str, target: str, rows: Sequence[list[Any]]) -> Sequence[Refused | str | None]:
        """What became of each."""
        flat = [part for row in rows for part in row]
        if target:
            more = (self._broker.address.group, int(self._makes_lists), *flat)
            answer = self._ask(target, scripts.SEND_BACK_ELSEWHERE((target,), *more))
        else:
            answer = self._ask(self._source, scripts.SEND_BACK(self._broker.keys(self._source, group), group, *flat))
        if isinstance(answer, list):
            return [None if each == 1 else self._refused(redis.ResponseError(as_text(each))) for each in answer]
        if isinstance(answer, bytes):
            answer = _cannot(f"it came from {target!r}, and {foreign.no_target(answer)}. Make a stream of that name.")
        return [answer] * len(rows)

    def _ask(self, key: str, command: Command) -> Any:
        """What the script says; `Refused` if it did nothing, a text if that is not known. Once the connection is lost nothing is
        sent any more: every try would wait as long."""
        if self._down is not None:
            return self._down
        connection = self._broker.connection
        try:
            connection.node(key)
        except BrokerUnavailable as error:
            self._down = not_sent(error)
            return self._down
        try:
            (answer,) = connection.try_all(key, command)
        except BrokerUnavailable as error:
            self._down = not_sent(error)
            return str(error)
        return self._refused(answer) if isinstance(answer, redis.ResponseError) else answer

    def _refused(self, failed: redis.ResponseError) -> Refused:
        return refused(self._broker.address.shown, failed)


def _row(whole: WholeLetter) -> Row | Refused:
    """What the script gets. May raise."""
    native, letter = msgspec.msgpack.decode(whole.native or b"", type=Native), whole.letter
    fields = native.message(letter)
    if native.target:
        return Row("", native.target, [envelope.packed(fields), letter.body])
    if not is_group(native.group):
        return _cannot(
            f"{native.group!r} is no name of a group, so that nobody would get it. Publish its body by hand: unpoison publish",
            Refusal.UNFIT,
        )
    return Row(native.group, "", [envelope.number_again(native.no), *envelope.started_again(letter, fields)])


def _unreadable(_: WholeLetter, error: Exception) -> Refused:
    """A guess could bring it to a group that did not give it up."""
    told = (
        f"what the store has of its native form cannot be read ({type(error).__name__}: {error}), so it is not known which group "
        f"gave it up and what its fields were. Publish its body by hand: unpoison publish"
    )
    return _cannot(told, Refusal.UNFIT)


def _cannot(told: str, refusal: Refusal = Refusal.NO_SUCH_SOURCE) -> Refused:
    return not_sent(PayloadError(f"The letter cannot be sent back: {told}"), refusal)
