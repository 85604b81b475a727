"""Write headers, counters and dead letters as JSON text, and read them back.

Text, so that a person can read it with the broker's own tools. Reading expects anything: anyone may write to a queue.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from unpoison.model.dead_letter import DeadLetter
from unpoison.model.events import fields
from unpoison.model.fingerprint import renewed
from unpoison.model.message import HISTORY_LIMIT, MOST_COUNTED, NO_HEADERS, UNTRIED, Counters, Message
from unpoison.model.verdict import ErrorClassification
from unpoison.model.wording import counted
from unpoison.port.reading import as_bytes, as_text, read_one, unreadable_letter

UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What reading a text may raise that another program has written: one nested too deeply is an error of its own kind."""

_headers = msgspec.json.Decoder(dict[str, str]).decode
_counters = msgspec.json.Decoder(Counters).decode
_record = msgspec.json.Decoder(dict[str, Any]).decode


STAMP, COUNTERS, ATTEMPTS = "x-unpoison-stamp", "x-unpoison-counters", "x-delivery-attempts"
"""Headers of a copy: which message it is a copy of, its counters as one JSON text, and the starts already charged. Only the
counters are read; the last one is for other tools. Counters without a stamp were written by another program and count nothing."""

LETTER, LETTER_ID, STATE, GROUP = "x-unpoison-letter", "x-unpoison-letter-id", "x-unpoison-state", "x-unpoison-group"
"""Headers of a dead letter: what is known about the failure as JSON, which letter it is, what became of it, and whose it is."""

GIST = ("x-unpoison-source", "x-unpoison-error", "x-unpoison-reason")
"""Headers that tell people in short about a dead letter: of which source it is, how it failed, and why it was given up."""

MOST_GIST = 500
"""Characters of one of them."""


def headers_text(headers: Mapping[str, str]) -> str | None:
    return msgspec.json.encode(dict(headers)).decode() if headers else None


def read_headers(text: str | bytes | None) -> Mapping[str, str]:
    return NO_HEADERS if text is None else _headers(text)


def counters_text(counters: Counters, most: int | None = None) -> str | None:
    """Counters as JSON; None if there is nothing to tell. Of a history that takes more bytes than `most` the end is kept."""
    if counters == UNTRIED:
        return None
    text = msgspec.json.encode(counters)
    while most is not None and len(text) > most and counters.history:
        counters = msgspec.structs.replace(counters, history=counters.history[1:])
        text = msgspec.json.encode(counters)
    return text.decode()


def read_counters(text: str | bytes | None) -> Counters:
    return UNTRIED if text is None else _counters(text)


def counters_or_untried(found: str | bytes | Mapping[str, Any] | None) -> Counters:
    """Counters that anyone may have written, as JSON or decoded: what cannot be read counts nothing."""
    try:
        return msgspec.convert(found, Counters) if isinstance(found, Mapping) else read_counters(found)
    except UNREADABLE:
        return UNTRIED


def record_text(letter: DeadLetter) -> str:
    """Everything of a letter that has no column of its own."""
    fields = msgspec.to_builtins(msgspec.structs.replace(letter, message=Message("", "", b"", None, {})))
    for column in ("id", "message", "state", "replays", "fingerprint", "redaction"):
        del fields[column]
    return msgspec.json.encode(fields).decode()


LETTER_COLUMNS = "no, state, replays, fingerprint, id, key, headers, body, record"


def letter(source: str, row: Sequence[Any]) -> DeadLetter:
    """A letter from a row of LETTER_COLUMNS. One that cannot be read is shown as far as it goes."""

    def bare(row: Sequence[Any], error: Exception) -> DeadLetter:
        no, state, _, _, id_, key, _, body, _ = row
        message = Message(as_text(id_), source, as_bytes(body), None if key is None else as_text(key))
        return unreadable_letter(f"{source}-{no}", as_text(state), message, error)

    return renewed(read_one(row, lambda row: _letter(source, row), bare))


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
        del fields["message"], fields["id"], fields["state"], fields["redaction"]
        data = msgspec.json.encode(fields)
        if len(data) <= most:
            break
    return data


def letter_headers(letter: DeadLetter, most: int) -> dict[str, str]:
    """What a dead letter tells beside its message: the gist in headers that people read, and all of it in one of `most` bytes."""
    gist = (letter.source, _one_line(f"{letter.error_type}: {letter.error}"), _one_line(letter.reason))
    return {**dict(zip(GIST, gist, strict=True)), LETTER: letter_within(letter, most).decode()}


def _one_line(text: str) -> str:
    return " ".join(text[:MOST_GIST].split())


def read_letter(record: str | bytes | Mapping[str, Any] | None, source: str = "") -> DeadLetter | None:
    """A dead letter from its record, as JSON or decoded, without its message; None if this is no record of ours."""
    if not record:
        return None
    try:
        fields = msgspec.json.decode(record) if isinstance(record, str | bytes) else record
        return msgspec.convert({**fields, "message": {"id": "", "source": source, "body": b""}}, DeadLetter)
    except UNREADABLE:
        return None


def is_ours(record: str | bytes | Mapping[str, Any] | None) -> bool:
    """Whether this is the record of a letter of ours. Never raises."""
    return read_one(record, read_letter, lambda *_: None) is not None


def letter_of(
    record: str | bytes | Mapping[str, Any] | None,
    message: Message,
    otherwise: Callable[[], DeadLetter],
    *,
    id_: str,
    state: str,
) -> DeadLetter:
    """The letter of this message by its record, or `otherwise` where that is not ours, whose message may be inside of this one.
    Never raises."""

    def read(record: str | bytes | Mapping[str, Any] | None) -> DeadLetter:
        ours = read_letter(record, message.source)
        return otherwise() if ours is None else msgspec.structs.replace(ours, message=message)

    letter = read_one(record, read, lambda _, error: unreadable_letter("", state, message, error))
    return renewed(msgspec.structs.replace(letter, id=id_, state=state))


def foreign_letter(
    message: Message,
    rule: str,
    error_type: str,
    at: float,
    counters: Counters = UNTRIED,
    *,
    reason: str = "",
    error: str = "",
    traceback: str = "",
    original: Mapping[str, str | int] = {},
) -> DeadLetter:
    """A dead letter that the server itself or another program wrote."""
    return DeadLetter(
        message=message,
        attempts=counters.charged,
        classification=str(ErrorClassification.UNKNOWN),
        rule=rule,
        reason=reason or rule,
        error_type=error_type,
        error=error or rule,
        traceback=traceback,
        first_failed_at=counters.first_failed_at or at,
        last_failed_at=at,
        history=counters.history,
        replays=counters.replays,
        original=dict(original),
    )


log = logging.getLogger("unpoison")


def restarted(record: Mapping[str, Any] | str | bytes | None, replays: int = 0) -> Counters:
    """The counters of a dead letter that another tool has moved back into its source.

    A shovel, the redrive of SQS or a console producer knows nothing of counters: the message comes with all its attempts used and
    would be a dead letter again at once. A person wanted it to run, so it starts as a replay does, with the letter's history.
    Where its record cannot be read, all that is known are the `replays` that the message counts.
    """
    letter = read_letter(record)
    if letter is None:
        return Counters(replays=min(max(0, replays) + 1, MOST_COUNTED))
    return msgspec.structs.replace(letter.replayed(), history=letter.history[-HISTORY_LIMIT:])


def tell(source: str, count: int) -> None:
    """Said once for many: see `takeovers.CameBack`."""
    log.info(
        "Source %r: another tool moved %s back from the DLQ. Started again as replays, with their history.",
        source,
        counted(count, "dead letter"),
        extra=fields("moved-back", source=source, count=count),
    )
