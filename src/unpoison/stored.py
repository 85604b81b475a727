"""How are headers, counters and dead letters written down, wherever a broker stores them?

As JSON text, so that a person can read them with the broker's own tools.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from unpoison.deadletters.record import DeadLetter
from unpoison.message import NO_HEADERS, UNTRIED, Counters, Message
from unpoison.reading import as_bytes, as_text, read_one, unreadable_letter

UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What reading a text may raise that somebody else has written: one nested too deeply is an error of its own kind."""

_headers = msgspec.json.Decoder(dict[str, str]).decode
_counters = msgspec.json.Decoder(Counters).decode
_record = msgspec.json.Decoder(dict[str, Any]).decode


def headers_text(headers: Mapping[str, str]) -> str | None:
    return msgspec.json.encode(dict(headers)).decode() if headers else None


def read_headers(text: str | bytes | None) -> Mapping[str, str]:
    return NO_HEADERS if text is None else _headers(text)


def counters_text(counters: Counters) -> str | None:
    return None if counters == UNTRIED else msgspec.json.encode(counters).decode()


def read_counters(text: str | bytes | None) -> Counters:
    return UNTRIED if text is None else _counters(text)


def record_text(letter: DeadLetter) -> str:
    """Everything of a letter that has no column of its own."""
    fields = msgspec.to_builtins(msgspec.structs.replace(letter, message=Message("", "", b"", None, {})))
    for column in ("id", "message", "state", "replays", "fingerprint"):
        del fields[column]
    return msgspec.json.encode(fields).decode()


LETTER_COLUMNS = "no, state, replays, fingerprint, id, key, headers, body, record"


def letter(source: str, row: Sequence[Any]) -> DeadLetter:
    """A letter from a row of LETTER_COLUMNS. One that cannot be read is shown as far as it goes."""

    def bare(row: Sequence[Any], error: Exception) -> DeadLetter:
        no, state, _, _, id_, key, _, body, _ = row
        message = Message(as_text(id_), source, as_bytes(body), None if key is None else as_text(key))
        return unreadable_letter(f"{source}-{no}", as_text(state), message, error)

    return read_one(row, lambda row: _letter(source, row), bare)


def _letter(source: str, row: Sequence[Any]) -> DeadLetter:
    no, state, replays, fingerprint, id_, key, headers, body, record = row
    fields = _record(record) | {
        "id": f"{source}-{no}",
        "state": state,
        "replays": replays,
        "fingerprint": fingerprint,
        "message": {"id": id_, "source": source, "key": key, "headers": {}, "body": b""},
    }
    found = msgspec.convert(fields, DeadLetter)
    return msgspec.structs.replace(found, message=Message(id_, source, body, key, read_headers(headers)))


def letter_within(letter: DeadLetter, most: int) -> bytes:
    """Everything that the message itself does not say, cut until it has so many bytes, for brokers that limit a header."""
    bare = msgspec.structs.replace(letter, message=Message("", "", b"", None, {}))
    data = b""
    for cap in (None, 8_000, 2_000, 200):
        if cap is not None:
            crash = bare.crash and msgspec.structs.replace(bare.crash, stack=bare.crash.stack[-cap:], log=bare.crash.log[-cap:])
            bare = msgspec.structs.replace(
                bare,
                traceback=bare.traceback[-cap:],
                error=bare.error[:cap],
                rule=bare.rule[:cap],
                reason=bare.reason[:cap],
                crash=crash,
                history=bare.history[-3:],
                original={name: value[:cap] if isinstance(value, str) else value for name, value in bare.original.items()},
            )
        fields = msgspec.to_builtins(bare)
        del fields["message"], fields["id"], fields["state"]
        data = msgspec.json.encode(fields)
        if len(data) <= most:
            break
    return data
