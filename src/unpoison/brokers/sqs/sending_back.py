"""Keep all of a letter outside of its DLQ, and send its message back from there.

What is kept is what SQS hands out beside the body, and the body itself where that is not the letter's: it is encoded, or the
letter is inside of it. So a message is sent back just as it is sent again from the DLQ, but straight to where it belongs: the
replays and the history are for letters that are here.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from unpoison.brokers.sqs import copies, envelope, foreign
from unpoison.brokers.sqs.connection import AT_ONCE
from unpoison.brokers.sqs.copies import Found
from unpoison.brokers.sqs.envelope import Raw
from unpoison.brokers.sqs.names import check_name
from unpoison.brokers.sqs.topology import Client
from unpoison.brokers.sqs.writing import Copy, store_each, why
from unpoison.errors import BrokerUnavailable, ConfigError, Refusal
from unpoison.model.dead_letter import WholeLetter
from unpoison.port.broker import STORED, Published, Refused, not_sent
from unpoison.port.copying.dlq_index import portions
from unpoison.port.foreign.dlq import without_origin
from unpoison.port.reading import read_one


class Attribute(msgspec.Struct, omit_defaults=True):
    """An attribute of a message, in SQS's own words."""

    DataType: str
    StringValue: str | None = None
    BinaryValue: bytes | None = None


class Native(msgspec.Struct):
    """A message, without its body if that is the letter's."""

    id: str
    system: dict[str, str]
    attributes: dict[str, Attribute]
    body: str | None = None


_read_native = msgspec.msgpack.Decoder(Native).decode


def whole_letter(found: Found, raw: Raw) -> WholeLetter:
    """A letter with all that `send_back` needs; `raw` is the message that it was found in."""
    sent = envelope.sent(raw)
    native = {"id": raw["MessageId"], "system": raw["Attributes"], "attributes": sent}
    if raw["Body"].encode() != found.letter.body:
        native["body"] = raw["Body"]
    headers = tuple((name, _shown(value)) for name, value in sent.items())
    return WholeLetter(letter=found.letter, headers=headers, native=msgspec.msgpack.encode(native))


def _shown(value: Raw) -> str | bytes:
    content = envelope.attribute_bytes(value)
    return read_one(content, bytes.decode, lambda content, _: content)


def _found(source: str, whole: WholeLetter) -> Found:
    """What `whole_letter` was made of. May raise."""
    native = _read_native(whole.native or b"")
    raw: dict[str, Any] = {
        "MessageId": native.id,
        "Attributes": native.system,
        "MessageAttributes": msgspec.to_builtins(native.attributes, builtin_types=(bytes,)),
        "Body": whole.letter.body.decode() if native.body is None else native.body,
    }
    return copies.read(source, raw, "dead")


def url_of(client: Client, queue: str) -> str | None:
    """Of a queue that a letter names. The prefix of our URL may be missing: it is our own word."""
    return client.url(queue) or client.url(client.address.prefix + queue)


Way = Callable[[Found], Copy]
"""Makes what is sent to one queue."""


def send_back(client: Client, source: str, letters: Sequence[WholeLetter], requests: int) -> Published:
    """Send their messages, with so many requests under way; says what became of each."""
    return _sent(_SendingBack(client, source, letters), letters, requests)


def send_back_elsewhere(
    client: Client, dlq: str, letters: Sequence[WholeLetter], requests: int, origin_of: Callable[[Found], str]
) -> Published:
    """The same of letters of several sources, each to the queue that it came from."""
    return _sent(_SendingElsewhere(client, dlq, letters, origin_of), letters, requests)


def _sent(sending: "_SendingBack", letters: Sequence[WholeLetter], requests: int) -> Published:
    for part in portions(range(len(letters)), AT_ONCE * requests, size_of=sending.size):
        sending.send(part)
    return Published(sending.refused, sending.unknown) if sending.refused or sending.unknown else STORED


class _SendingBack:
    """One call of it."""

    def __init__(self, client: Client, source: str, letters: Sequence[WholeLetter]) -> None:
        self._client, self._source, self._letters = client, source, letters
        self._ways: dict[str | None, Way | Refused] = {}
        self.refused: dict[int, Refused] = {}
        self.unknown: dict[int, str] = {}

    def size(self, number: int) -> int:
        whole = self._letters[number]
        return len(whole.letter.body) + len(whole.native or b"")

    def send(self, numbers: Sequence[int]) -> None:
        """Once there was no answer no more is sent: it would be waited for in vain, and nobody would know what became of it."""
        if trouble := next(iter(self.unknown.values()), None):
            told = f"It was not sent, since there was no answer for one before it: {trouble}"
            self.refused.update(dict.fromkeys(numbers, Refused(Refusal.NOT_SENT, told)))
            return
        made = {number: self._copy(self._letters[number]) for number in numbers}
        self.refused |= {number: each for number, each in made.items() if isinstance(each, Refused)}
        sent = {number: each for number, each in made.items() if isinstance(each, Copy)}
        left = store_each(self._client.connection, list(sent.values()))
        for number, no in zip(map(list(sent).__getitem__, left), map(why, left.values()), strict=True):
            if isinstance(no, Refused):
                self.refused[number] = no
            else:
                self.unknown[number] = no

    def _copy(self, whole: WholeLetter) -> Copy | Refused:
        found = read_one(whole, partial(_found, self._source), _cannot_be_read)
        if isinstance(found, Refused):
            return found
        way = self._way_of(whole, found)
        return way if isinstance(way, Refused) else read_one(found, way, lambda _, error: _cannot_be_read(whole, error))

    def _way_of(self, _: WholeLetter, found: Found) -> Way | Refused:
        return self._known_way(foreign.origin(check_name(self._client.address, self._source), found.told))

    def _known_way(self, queue: str | None) -> Way | Refused:
        if queue not in self._ways:
            self._ways[queue] = self._way(queue)
        return self._ways[queue]

    def _way(self, queue: str | None) -> Way | Refused:
        """To this queue, or to the source, which is made again if it was deleted meanwhile."""
        try:
            if queue is None:
                self._client.remake(self._source)
                return partial(copies.sent_again, self._client.topic(self._source))
            url = url_of(self._client, queue)
        except (BrokerUnavailable, ConfigError) as error:
            return not_sent(error)
        return _gone(queue) if url is None else partial(copies.elsewhere, url)


class _SendingElsewhere(_SendingBack):
    """One call of it, for letters of a DLQ of others."""

    def __init__(self, client: Client, dlq: str, letters: Sequence[WholeLetter], origin_of: Callable[[Found], str]) -> None:
        super().__init__(client, dlq, letters)
        self._origin_of = origin_of

    def _way_of(self, whole: WholeLetter, found: Found) -> Way | Refused:
        queue = self._origin_of(found)
        return self._known_way(queue) if queue not in ("", self._source) else not_sent(without_origin(whole.letter.id))


def _cannot_be_read(whole: WholeLetter, error: Exception) -> Refused:
    return Refused(
        Refusal.UNFIT,
        f"Letter {whole.letter.id!r} cannot be sent back: what was stored with it for SQS cannot be read ({error}). It was "
        f"changed in the store, or comes from another broker. Publish its body as a new message.",
    )


def _gone(queue: str) -> Refused:
    return Refused(
        Refusal.NO_SUCH_SOURCE,
        f"It came from queue {queue!r}, which does not exist any more, or which this user may not see. Create the queue and send "
        f"it back again.",
    )
