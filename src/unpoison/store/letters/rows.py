"""How does a dead letter become rows, and rows a dead letter again?

Its columns are what it is listed, searched and sorted by. What a column cannot hold as it is (`columns.py`) is in the
record too, with all that has no column. An id and a source have no other value than that of their column.
"""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.fingerprint import renewed
from unpoison.model.message import NO_HEADERS, Message, as_text
from unpoison.port.reading import read_one, unreadable_letter
from unpoison.store.letters.bodies import BYTES, TOMBSTONE, Kept, body_of, kept, restored, squeezed
from unpoison.store.letters.columns import INDEXED, LONGEST_NAME, as_column, moment, whole
from unpoison.store.letters.values import StoredLetter

LETTER = (
    "no, source, place, letter_id, state, failed_at, first_failed_at, arrived_at, fingerprint, classification, error_type, "
    "error_name, error, rule, reason, traceback, message_id, key, attempts, replays, consumer, code_version, size, digest, "
    "duplicate_of, note, owner"
)
CONTENTS = "no, form, body_text, body, headers, native_headers, native, record"

_TEXTS = (
    "classification",
    "error_type",
    "error",
    "rule",
    "reason",
    "traceback",
    "consumer",
    "code_version",
    "note",
    "owner",
    "state",
    "fingerprint",
)
_CHANGE = ("state", "note", "owner")
"""What people change: it is what its column says."""
_PARTS_OF_KEYS = ("classification", "code_version", "fingerprint")
_OF_RECORD = ("original", "crash", "history", "redaction")


class Prepared(NamedTuple):
    """A letter that is ready to be written, but for its number, the time it arrives at and whether it is a duplicate."""

    source: str
    place: str
    letter_id: str
    letter: DeadLetter
    failed_at: float
    first_failed_at: float
    values: tuple[object, ...]
    contents: tuple[object, ...]
    traceback: bytes | None
    digest: bytes | None
    size: int
    sealed: bytes | None = None

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.source, self.place, self.letter_id

    @property
    def facts(self) -> tuple[object, ...]:
        """What two letters of one identity have in common, if they are one letter."""
        return self.failed_at, as_column(self.letter.message.id), whole(self.letter.replays)

    def renamed(self) -> "Prepared":
        """With an id that no other letter has: brokers count anew in a topic or file that was deleted and made again."""
        known = repr(self.facts).encode("utf-8", "surrogatepass") + b"\0" + self.letter.body
        letter_id = f"{self.letter_id}~{_digest(known).hex()}"
        return self._replace(letter_id=letter_id, values=(*self.values[:2], letter_id, *self.values[3:]))

    def row(self, number: int, arrived_at: float, duplicate_of: int | None) -> tuple[object, ...]:
        """In the order of LETTER."""
        v = self.values
        return (number, *v[:6], arrived_at, *v[6:22], duplicate_of, *v[22:])


def prepared(whole_letter: WholeLetter) -> Prepared:
    """Everything that takes time is done here, before a transaction begins."""
    letter, exact = _storable(renewed(whole_letter.letter))
    message = letter.message
    body = kept(message)
    source, place = as_column(message.source), as_column(whole_letter.place)
    if whole_letter.has_identity:
        letter_id, digest = _distinct(whole_letter.letter.id), None
    else:
        letter_id = f"{as_column(whole_letter.letter.id or message.id)}~{uuid.uuid4().hex}"
        keyed = letter.redaction.digest if letter.redaction else None
        digest = digest_of(message, place) if keyed is None else bytes.fromhex(keyed)
    trace = _digest(letter.traceback.encode()) if letter.traceback else None
    headers = _json(dict(message.headers)) if message.headers else None
    record = _record(letter, exact)
    native_headers = squeezed(packed_headers(whole_letter.headers)) if whole_letter.headers else None
    native = None if whole_letter.native is None else squeezed(whole_letter.native)
    size = len(message.body) + len(whole_letter.native or b"") + len(record or "") + len(whole_letter.sealed or b"")
    failed_at, first_failed_at = moment(letter.last_failed_at), moment(letter.first_failed_at)
    values = (
        *(source, place, letter_id, letter.state, failed_at, first_failed_at, letter.fingerprint),
        *(letter.classification, letter.error_type, letter.error_type.rpartition(".")[2], letter.error, letter.rule),
        *(letter.reason, trace, as_column(message.id), None if message.key is None else as_column(message.key)),
        *(whole(letter.attempts), whole(letter.replays), letter.consumer, letter.code_version, size, digest),
        *(letter.note, letter.owner),
    )
    contents = (body.form, body.text, body.data, headers, native_headers, native, record)
    times = failed_at, first_failed_at
    return Prepared(source, place, letter_id, letter, *times, values, contents, trace, digest, size, whole_letter.sealed)


def _distinct(letter_id: str) -> str:
    """Two ids are never one, whatever a database cannot hold of them."""
    column = as_column(letter_id)
    if column == letter_id and len(column) <= INDEXED:
        return letter_id
    column = column[:INDEXED]
    return f"{column}~{_digest(letter_id.encode('utf-8', 'surrogatepass')).hex()}"


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def digest_of(message: Message, place: str) -> bytes:
    """Equal for messages that are equal."""
    known = [message.source, place, message.id, message.key, dict(message.headers), message.is_tombstone]
    return _digest(json.dumps(known).encode("utf-8", "surrogatepass") + b"\0" + message.body)


def _storable(letter: DeadLetter) -> tuple[DeadLetter, Mapping[str, Any]]:
    """The letter with texts as a column can hold them, and what they are where that is something else."""
    exact: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    for name in _TEXTS:
        text = getattr(letter, name)
        if text and (column := _in_column(name, text)) != text:
            changed[name] = column
            if ("\0" in text or len(column) < len(text)) and name not in _CHANGE:
                exact[name] = _whole_characters(text)
    for name in ("id", "key"):
        text = getattr(letter.message, name)
        if text and "\0" in text:
            exact[f"message.{name}"] = _whole_characters(text)
    for name in ("attempts", "replays"):
        if whole(number := getattr(letter, name)) != number:
            exact[name] = str(number)
    for name in ("last_failed_at", "first_failed_at"):
        if moment(time := getattr(letter, name)) != time:
            exact[name] = repr(float(time)) if isinstance(time, float) else "nan"
    return (msgspec.structs.replace(letter, **changed) if changed else letter), exact


def _in_column(name: str, text: str) -> str:
    column = as_column(text)
    return column[:LONGEST_NAME] if name in _PARTS_OF_KEYS else column


def _whole_characters(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _record(letter: DeadLetter, exact: Mapping[str, Any]) -> str | None:
    fields: dict[str, Any] = {name: value for name in _OF_RECORD if (value := getattr(letter, name))}
    if exact:
        fields["exact"] = exact
    return _json(fields) if fields else None


def _json(value: Any) -> str:
    """Whatever another program has put into it: texts with half a character, numbers of any length."""
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, ValueError, OverflowError, TypeError):
        plain = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
        return plain.encode("utf-8", "replace").decode()


def packed_headers(headers: Sequence[tuple[str, Any]]) -> bytes:
    try:
        return msgspec.msgpack.encode(headers, enc_hook=as_text)
    except (msgspec.MsgspecError, ValueError, OverflowError, TypeError):
        return msgspec.msgpack.encode([(as_text(name), as_text(value)) for name, value in headers])


STORED = (
    "l.no, l.source, l.place, l.letter_id, l.state, l.failed_at, l.first_failed_at, l.arrived_at, l.fingerprint, "
    "l.classification, l.error_type, l.error, l.rule, l.reason, t.traceback, l.message_id, l.key, l.attempts, l.replays, "
    "l.consumer, l.code_version, l.duplicate_of, l.note, l.owner, c.form, c.body_text, c.body, c.headers, c.native_headers, "
    "c.native, c.record"
)
FROM = """unpoison_letters l
    left join unpoison_letter_contents c on c.no = l.no left join unpoison_tracebacks t on t.digest = l.traceback"""

_read_record = msgspec.json.Decoder(dict[str, Any]).decode
_read_headers = msgspec.json.Decoder(dict[str, str]).decode
read_headers = msgspec.msgpack.Decoder(tuple[tuple[str, Any], ...]).decode


def stored(row: Sequence[Any]) -> StoredLetter:
    """A letter from a row of STORED. One that cannot be read is shown as far as it goes: anyone may write to a database."""
    return read_one(row, _stored, _bare)


_NAMES = tuple(name.partition(".")[2] for name in STORED.split(", "))
_SAME = (
    *("state", "fingerprint", "classification", "error_type", "error", "rule", "reason", "attempts", "replays", "consumer"),
    *("code_version", "note", "owner"),
)


def _stored(row: Sequence[Any]) -> StoredLetter:
    columns = dict(zip(_NAMES, row, strict=True))
    record = _read_record(columns["record"]) if columns["record"] else {}
    exact = record.pop("exact", {})
    found = {name: columns[name] for name in _SAME}
    found |= {"id": columns["letter_id"], "traceback": columns["traceback"] or ""}
    found |= {"last_failed_at": columns["failed_at"], "first_failed_at": columns["first_failed_at"]}
    message = _message(columns, exact)
    found |= {name: _EXACT[name](value) if name in _EXACT else value for name, value in exact.items()}
    found |= {name: msgspec.convert(value, _TYPES[name]) for name, value in record.items()}
    return StoredLetter(
        number=columns["no"],
        letter=DeadLetter(message=message, **found),
        place=columns["place"],
        arrived_at=columns["arrived_at"],
        duplicate_of=columns["duplicate_of"],
        headers=read_headers(restored(columns["native_headers"])) if columns["native_headers"] else (),
        native=None if columns["native"] is None else restored(columns["native"]),
    )


def _message(columns: Mapping[str, Any], exact: dict[str, Any]) -> Message:
    return Message(
        exact.pop("message.id", columns["message_id"]),
        columns["source"],
        body_of(Kept(columns["form"], columns["body_text"], columns["body"])),
        exact.pop("message.key", columns["key"]),
        _read_headers(columns["headers"]) if columns["headers"] else NO_HEADERS,
        columns["form"] == TOMBSTONE,
    )


_EXACT: Mapping[str, Any] = {"attempts": int, "replays": int, "last_failed_at": float, "first_failed_at": float}
_TYPES = {field.name: field.type for field in msgspec.structs.fields(DeadLetter) if field.name in _OF_RECORD}


def packed_row(ready: Prepared) -> bytes:
    """The row of a letter that is in no table."""
    values: dict[str, object] = dict(zip(LETTER.split(", "), ready.row(0, 0.0, None), strict=True))
    values |= dict(zip(CONTENTS.split(", "), (0, *ready.contents), strict=True)) | {"traceback": ready.letter.traceback}
    return msgspec.msgpack.encode([values[name] for name in _NAMES])


def unpacked_row(data: bytes) -> StoredLetter:
    """Raises ValueError or msgspec.MsgspecError if it is none."""
    return _stored(_read_row(data))


_read_row = msgspec.msgpack.Decoder(list[Any]).decode


def _bare(row: Sequence[Any], error: Exception) -> StoredLetter:
    columns = dict(zip(_NAMES, row, strict=True))
    body = Kept(columns["form"] or BYTES, columns["body_text"], columns["body"])
    read = read_one(body, body_of, lambda body, _: body.data or b"")
    message = Message(columns["message_id"], columns["source"], read, columns["key"])
    return StoredLetter(
        number=columns["no"],
        letter=unreadable_letter(columns["letter_id"], columns["state"], message, error),
        place=columns["place"],
        arrived_at=columns["arrived_at"],
    )
