"""How are headers, counters and dead letters written down, wherever a broker stores them?

As JSON text, so that a person can read them with the broker's own tools.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from unpoison.decide.attempts import HISTORY_LIMIT
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import MOST_COUNTED, NO_HEADERS, UNTRIED, Counters, Message
from unpoison.model.wording import counted
from unpoison.port.reading import as_bytes, as_text, read_one, unreadable_letter

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


# What if a broker's own tool moves a dead letter back into its source?
#
# A shovel, the redrive of SQS or a console producer knows nothing of counters: the message comes with all its attempts used and
# would be a dead letter again at once. Somebody wanted it to run, so it starts as a replay does, and keeps the letter's
# history. An adapter calls this for a message in the source that carries the marks of a letter that waits.


log = logging.getLogger("unpoison")

_NO_MESSAGE: dict[str, Any] = {"id": "", "source": "", "key": None, "headers": {}, "body": b""}


def restarted(record: Mapping[str, Any] | str | bytes | None, replays: int = 0) -> Counters:
    """The counters with which such a message starts.

    `record` is what the letter tells of itself, as JSON text or decoded. Where that cannot be read, all that is known are the
    `replays` that the message counts.
    """
    try:
        told = msgspec.json.decode(record) if isinstance(record, str | bytes) else record
        letter = msgspec.convert({**told, "message": _NO_MESSAGE}, DeadLetter)  # type: ignore[dict-item]
    except UNREADABLE:
        return Counters(replays=min(max(0, replays) + 1, MOST_COUNTED))
    return msgspec.structs.replace(letter.replayed(), history=letter.history[-HISTORY_LIMIT:])


def tell(source: str, count: int) -> None:
    """Said once for many: see `takeovers.CameBack`."""
    log.info(
        "Source %r: another tool moved %s back from the DLQ. Started again as replays, with their history.",
        source,
        counted(count, "dead letter"),
        extra={"event": "moved-back", "source": source, "count": count},
    )
