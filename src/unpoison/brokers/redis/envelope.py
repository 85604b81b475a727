"""Stream entries of messages and of dead letters, and how they become deliveries and letters.

What unpoison publishes has the fields `id` and `body` and, if any, `key` and `headers` (JSON). Entries of other programs are read
as they are: without a field `body` the body is a JSON object of all fields; with one, the other fields are headers. Their fields
travel unchanged through retries, dead letters and replays.

The entry of a dead letter has the message first (`id`, `body`, `key`, `headers`), so that every tool can read it, then a summary
(`error`, `reason`, `group`), then everything known about the failure as JSON (`record`). If the original entry had other fields,
`fields` has them as they were.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from unpoison.brokers.redis import foreign
from unpoison.brokers.redis.url import is_group
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.fingerprint import renewed
from unpoison.model.message import MOST_COUNTED, NO_HEADERS, UNTRIED, Delivery, Message, Native, Outgoing
from unpoison.port import serialization
from unpoison.port.foreign.told import Told
from unpoison.port.reading import Unreadable, as_text, read_all, read_one, text_or_bytes, unreadable
from unpoison.port.serialization import UNREADABLE, headers_text, read_counters, read_headers

STREAM_ID = re.compile(r"(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})")
"""An id that the stream gave. Other numbers are our own and mean nothing outside."""

_NOT_HEADERS = (b"id", b"key", b"body", b"headers")


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a delivery is on the server."""

    owner: str
    is_waiting: bool
    """It waits for another start; otherwise it is an entry of the stream."""
    no: bytes
    fields: Sequence[bytes]


def position_of(no: bytes) -> tuple[int, int]:
    """The id of a stream entry as numbers, which sort as the entries do."""
    first, _, second = no.partition(b"-")
    return int(first), int(second)


def by_name(fields: Sequence[bytes]) -> dict[bytes, bytes]:
    """The fields of an entry, which come as names and values in turn."""
    return dict(zip(fields[::2], fields[1::2], strict=False))


def fields_of(message: Outgoing | Message) -> list[bytes]:
    """The fields of a message in the stream."""
    fields = [b"id", message.id.encode(), b"body", message.body]
    if message.key is not None:
        fields += [b"key", message.key.encode()]
    if message.headers is not NO_HEADERS and message.headers:
        fields += [b"headers", (headers_text(message.headers) or "").encode()]
    return fields


def from_entries(source: str, owner: str, entries: Sequence[Any]) -> list[Delivery]:
    """Deliveries of what XREADGROUP returned."""
    together = partial(_entries, source, owner)
    return read_all(entries, together, lambda each: together([each])[0], partial(_unreadable_entry, source, owner))


def _entries(source: str, owner: str, entries: Sequence[Any]) -> list[Delivery]:
    """The hot loop: an ordinary message costs a Receipt and a Delivery."""
    made = []
    for no, fields in entries:
        receipt = Receipt(owner, False, no, fields)
        if len(fields) == 4 and fields[0] == b"id" and fields[2] == b"body":
            made.append(Delivery(receipt, source, str(fields[1], "utf-8", "backslashreplace"), fields[3]))
        else:
            made.append(_delivery(receipt, source, fields, None))
    return made


def from_waiting(source: str, owner: str, rows: Sequence[Any]) -> list[Delivery]:
    """Deliveries of rows of a script: number, message, counters, how often it came back since these were written."""
    return [read_one(row, partial(_waiting, source, owner), partial(_unreadable_waiting, source, owner)) for row in rows]


def _waiting(source: str, owner: str, row: Sequence[Any]) -> Delivery:
    no, blob, counters, returns = row
    known_id, *fields = unpacked(blob)
    delivery = _delivery(Receipt(owner, True, no, fields), source, fields, known_id or None)
    found = read_counters(counters.decode()) if counters else UNTRIED
    for _ in range(min(2, int(returns or 0))):
        found = found.returned()
    return msgspec.structs.replace(delivery, counters=found)


def _unreadable_entry(source: str, owner: str, entry: Sequence[Any], error: Exception) -> Unreadable:
    no, fields = entry
    return _unreadable(Receipt(owner, False, no, fields), source, {"fields": fields}, error)


def _unreadable_waiting(source: str, owner: str, row: Sequence[Any], error: Exception) -> Unreadable:
    no, blob, counters, _ = row
    fields = read_one(blob, lambda each: unpacked(each)[1:], lambda each, _: [b"body", each])
    return _unreadable(Receipt(owner, True, no, fields), source, {"fields": fields, "counters": counters}, error)


def _unreadable(receipt: Receipt, source: str, native: Mapping[str, Any], error: Exception) -> Unreadable:
    body = by_name(receipt.fields).get(b"body")
    return unreadable(receipt, source, as_text(receipt.no), packed(receipt.fields) if body is None else body, native, error)


def blob_of(delivery: Delivery) -> bytes:
    """Everything that is needed to deliver it again."""
    return packed([delivery.id.encode(), *delivery.receipt.fields])


def blob_of_message(message: Message | Outgoing, fields: Sequence[bytes] | None = None) -> bytes:
    return packed([message.id.encode(), *(fields_of(message) if fields is None else fields)])


def _delivery(receipt: Receipt, source: str, fields: Sequence[bytes], known_id: bytes | None) -> Delivery:
    values = by_name(fields)
    id_ = as_text(known_id or values.get(b"id") or receipt.no)
    key = values.get(b"key")
    if b"body" not in values:
        body = msgspec.json.encode({as_text(name): as_text(value) for name, value in values.items()})
        return Delivery(receipt, source, id_, body, None if key is None else as_text(key))
    return Delivery(receipt, source, id_, values[b"body"], None if key is None else as_text(key), _headers(values))


def _headers(values: Mapping[bytes, bytes]) -> Mapping[str, str]:
    """The texts of `_senders`."""
    found = {as_text(name): as_text(value) for name, value in values.items() if name not in _NOT_HEADERS}
    if b"headers" in values:
        try:
            found |= read_headers(values[b"headers"].decode())
        except UNREADABLE:
            found["headers"] = as_text(values[b"headers"])
    return found or NO_HEADERS


def _senders(pairs: Sequence[tuple[bytes, bytes]]) -> list[tuple[str, bytes]]:
    """All fields but ours, then those in the field `headers`. If that is not a JSON object of text, it stays as it is."""
    found = [(as_text(name), value) for name, value in pairs if name not in _NOT_HEADERS]
    for name, value in pairs:
        if name == b"headers":
            try:
                found += [(each, text.encode()) for each, text in read_headers(value.decode()).items()]
            except UNREADABLE:
                found.append(("headers", value))
    return found


def native(delivery: Delivery) -> Native:
    """What Redis knows about a message: its id in the stream, and its fields as they are, without the body."""
    receipt: Receipt = delivery.receipt
    pairs = list(zip(receipt.fields[::2], receipt.fields[1::2], strict=False))
    values = dict(pairs)
    properties = {
        "stream_id": no if STREAM_ID.fullmatch(no := as_text(receipt.no)) else None,
        "fields": [[name, value] for name, value in pairs if name != b"body"],
    }
    return Native(values.get(b"key"), tuple(_senders(pairs)) if b"body" in values else (), properties)


def fields_of_letter(letter: DeadLetter, original: Sequence[bytes], group: str, no: bytes) -> list[bytes]:
    """The entry of a letter. `original` are the fields that the message had in the stream, and `no` its number.

    A number that the stream did not give is our own: the letter does not show it.
    """
    if STREAM_ID.fullmatch(entry := as_text(no)):
        letter = msgspec.structs.replace(letter, original=letter.original | {"entry": entry})
    fields = fields_of(letter.message)
    same = fields == list(original)
    fields += [b"error", f"{letter.error_type}: {letter.error}"[:1000].encode(errors="backslashreplace")]
    fields += [b"reason", letter.reason.encode(errors="backslashreplace"), b"group", group.encode()]
    fields += [b"replays", str(letter.replays).encode(), b"fingerprint", letter.fingerprint.encode()]
    fields += [b"record", serialization.record_text(letter).encode()]
    return fields if same else [*fields, b"fields", packed(original)]


def letter_of(source: str, no: bytes, state: str, fields: Sequence[bytes]) -> DeadLetter:
    """The letter in an entry. One that another program wrote is shown as far as it can be read."""
    values = by_name(fields)
    texts = {name: as_text(value) for name, value in values.items() if name not in (b"body", b"fields")}
    replays = read_one(texts.get(b"replays") or "0", int, lambda *_: 0)
    if not texts.get(b"record"):
        return _of_others(source, no, state, fields, replays)
    row = (no.decode(), state, replays, texts.get(b"fingerprint", ""), texts.get(b"id") or no.decode())
    rest = (texts.get(b"key"), texts.get(b"headers"), values.get(b"body", b""), texts.get(b"record"))
    return serialization.letter(source, row + rest)


def told_by(source: str, no: bytes, fields: Sequence[bytes]) -> Told | None:
    """What another program says about a letter; None for one of ours."""
    values = by_name(fields)
    if values.get(b"record"):
        return None
    carried = _delivery(Receipt("", False, no, fields), source, fields, None).message
    return read_one(carried, lambda carried: foreign.told_by_entry(carried, values), lambda *_: Told(rule=foreign.RULE))


def _of_others(source: str, no: bytes, state: str, fields: Sequence[bytes], replays: int) -> DeadLetter:
    carried = _delivery(Receipt("", False, no, fields), source, fields, None).message
    told = told_by(source, no, fields) or Told(rule=foreign.RULE)
    letter = told.letter(carried, foreign.KIND, position_of(no)[0] / 1000)
    named = {"id": f"{source}-{no.decode()}", "state": state, "replays": min(max(0, replays), MOST_COUNTED)}
    return renewed(msgspec.structs.replace(letter, **named))


def original_of(message: Message, fields: Sequence[bytes], told: Told | None) -> list[bytes]:
    """The fields with which the message of a letter is replayed. `told` is what another program says about it."""
    if told is not None and told.content is None:
        return list(fields)
    values, known = by_name(fields), fields_of(message)
    return read_one(values[b"fields"], unpacked, lambda *_: known) if told is None and b"fields" in values else known


def started_again(letter: DeadLetter, fields: Sequence[bytes]) -> list[Any]:
    """What the scripts need to start the message of a letter again: itself with these fields, its counters, whether it must run
    alone."""
    counters = letter.replayed()
    return [blob_of_message(letter.message, fields), serialization.counters_text(counters), int(counters.alone)]


def number_again(no: bytes) -> bytes:
    """The number among the waiting messages of one whose letter had this number. The stream gives no such numbers."""
    return b"r" + no


def headers_of(fields: Sequence[bytes]) -> tuple[tuple[str, Any], ...]:
    """The fields of a letter, for people to see: all but the body, also where the fields of the message are one of them."""

    def value_of(name: bytes, value: bytes) -> Any:
        if name != b"fields":
            return text_or_bytes(value)
        return read_one(value, lambda each: headers_of(unpacked(each)), lambda *_: text_or_bytes(value))

    pairs = zip(fields[::2], fields[1::2], strict=False)
    return tuple((as_text(name), value_of(name, value)) for name, value in pairs if name != b"body")


def group_of(fields: Sequence[bytes], default: str) -> str:
    """The group that dead-lettered the message. A replay goes only there: other groups handle it themselves."""
    named = as_text(by_name(fields).get(b"group", b""))
    return named if is_group(named) else default


def number(source: str, letter_id: str) -> str | None:
    """The stream id in the id of a letter; None for an id of another source."""
    no = letter_id.removeprefix(f"{source}-")
    return no if letter_id.startswith(f"{source}-") and STREAM_ID.fullmatch(no) else None


def padded(no: str) -> str:
    """A stream id that sorts as text as it does as numbers."""
    first, _, second = no.partition("-")
    return f"{first:0>20}-{second:0>20}"


def unpadded(no: bytes) -> bytes:
    first, _, second = no.partition(b"-")
    return (first.lstrip(b"0") or b"0") + b"-" + (second.lstrip(b"0") or b"0")


def packed(texts: Iterable[bytes]) -> bytes:
    """Byte strings as one, in netstrings: `3:abc2:de`. People can read them, and the scripts read and write them too."""
    return b"".join([b"%d:%b" % (len(text), text) for text in texts])


def unpacked(blob: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(blob):
        colon = blob.index(b":", at)
        end = colon + 1 + int(blob[at:colon])
        found.append(blob[colon + 1 : end])
        at = end
    return found
