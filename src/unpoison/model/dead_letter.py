"""What is known about a message that was given up."""

import base64
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from unpoison.model.failure import Crash
from unpoison.model.message import MOST_COUNTED, Counters, Message, PastAttempt
from unpoison.model.verdict import ErrorClassification

ENCRYPTED, DROPPED = "encrypted", "dropped"


class Redaction(msgspec.Struct, frozen=True):
    """What a store does not show of a letter: the rules that found something, and what became of the letter as it was.

    `original` is "encrypted", with the id of the key, or "dropped": then it is kept nowhere, and the letter cannot be replayed.
    `digest` is a keyed hash of a message that has no identity, to find duplicates by.
    """

    rules: tuple[str, ...] = ()
    original: str = DROPPED
    key: str | None = None
    digest: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"rules": list(self.rules), "original": self.original, "key": self.key}


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.DOTALL)


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One message given up on, with everything known about why.

    `id` names the letter and is unique in its DLQ; `message.id` is the sender's and need not be. `state` is
    "dead" while it waits for a person, then "replayed" or "discarded". `redaction` is set by a store that does not show all.
    """

    id: str = ""
    message: Message
    attempts: int
    classification: str
    rule: str
    reason: str
    error_type: str
    error: str
    traceback: str = ""
    fingerprint: str = ""
    first_failed_at: float
    last_failed_at: float
    consumer: str = ""
    code_version: str | None = None
    original: dict[str, str | int] = {}
    crash: Crash | None = None
    history: tuple[PastAttempt, ...] = ()
    replays: int = 0
    state: str = "dead"
    note: str | None = None
    owner: str | None = None
    redaction: Redaction | None = None

    @property
    def source(self) -> str:
        return self.message.source

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def is_tombstone(self) -> bool:
        """Whether the body was null, and not merely empty."""
        return self.message.is_tombstone

    @property
    def trace_id(self) -> str | None:
        """The trace that the sender has put into the headers, in the form of W3C."""
        given = next((value for name, value in self.message.headers.items() if name.lower() == "traceparent"), "")
        found = _TRACEPARENT.fullmatch(given.strip())
        return found[1] if found else None

    def replayed(self) -> Counters:
        """The counters that the message starts again with. One that took a process down runs alone until cleared."""
        return counters_of_replay(self.classification, self.replays)

    def as_json(self) -> dict[str, Any]:
        """The letter as the command line prints it: text where the body is text, else base64 with its marker; null for a
        tombstone."""
        try:
            body, encoding = self.message.body.decode(), None
        except UnicodeDecodeError:
            body, encoding = base64.b64encode(self.message.body).decode(), "base64"
        return {
            "id": self.id,
            "message_id": self.message.id,
            "source": self.message.source,
            "key": self.message.key,
            "body": None if self.is_tombstone else body,
            **({"encoding": encoding} if encoding else {}),
            "headers": dict(self.message.headers),
            "trace_id": self.trace_id,
            "attempts": self.attempts,
            "classification": self.classification,
            "rule": self.rule,
            "reason": self.reason,
            "error_type": self.error_type,
            "error": self.error,
            "traceback": self.traceback,
            "fingerprint": self.fingerprint,
            "first_failed_at": iso(self.first_failed_at),
            "last_failed_at": iso(self.last_failed_at),
            "consumer": self.consumer,
            "code_version": self.code_version,
            "original": self.original,
            "crash": None if self.crash is None else msgspec.to_builtins(self.crash),
            "history": [msgspec.to_builtins(past) | {"at": iso(past.at)} for past in self.history],
            "replays": self.replays,
            "state": self.state,
            "note": self.note,
            "owner": self.owner,
            **({} if self.redaction is None else {"redaction": self.redaction.as_json()}),
        }


class WholeLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter with all that its broker needs to send the message again once its DLQ no longer has it.

    `place` is the DLQ if that is not the usual one of its source. `headers` are all headers as the broker has them, in their
    order, those of one name too. `native` is what only the adapter reads: what is sent back has the envelope that it had.

    Without an identity there is no telling whether a letter was stored before: then it is stored again under an id of its own,
    and marked as a duplicate if the store has a letter of an equal message.

    `sealed` is the encrypted original of a letter that is redacted.
    """

    letter: DeadLetter
    place: str = ""
    has_identity: bool = True
    headers: tuple[tuple[str, Any], ...] = ()
    native: bytes | None = None
    sealed: bytes | None = None


def counters_of_replay(classification: str, replays: int) -> Counters:
    """As `DeadLetter.replayed`, for an adapter that has read no more of the letter than this."""
    replays = min(max(0, replays) + 1, MOST_COUNTED)  # another program's letter may say anything
    if classification in (ErrorClassification.CRASH, ErrorClassification.LOST):
        return Counters(replays=replays, vanished=1, alone=True)
    return Counters(replays=replays)


def iso(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(moment)  # another program's letter may say anything
