"""What can a filter ask about?

A field has a kind, which says how its values are compared and by which operators. `MEANT` has the words that people may try for
some of them. They are not accepted, so that a filter reads the same everywhere, but the error names the field that is meant.
"""

import difflib
import enum
from typing import NamedTuple

from unpoison.model.verdict import STATES, ErrorClassification

EQUALITY = (":", "=", "!=")
ORDER = (">", ">=", "<", "<=")


class Kind(enum.Enum):
    """How a field is compared."""

    TEXT = "text"
    NAME = "name"
    PREFIX = "prefix"
    HEADER = "header"
    NUMBER = "number"
    AGE = "age"
    MOMENT = "moment"
    JSON = "json"

    @property
    def operators(self) -> tuple[str, ...]:
        if self is Kind.AGE:
            return ORDER
        return EQUALITY if self in (Kind.TEXT, Kind.NAME, Kind.PREFIX, Kind.HEADER) else EQUALITY + ORDER


class Field(NamedTuple):
    """One field: its kind, an example, what it looks at, and its values where there are only a few."""

    kind: Kind
    example: str
    about: str
    values: tuple[str, ...] = ()


FIELDS = {
    "error": Field(Kind.TEXT, "error:timeout", "the error: its type, its text, or both as `KeyError: 'total'`"),
    "traceback": Field(Kind.TEXT, "traceback:shipping.py", "the traceback"),
    "reason": Field(Kind.TEXT, 'reason:"attempts"', "the sentence that says why it became a dead letter"),
    "rule": Field(Kind.TEXT, "rule:schema", "the rule that decided"),
    "body": Field(Kind.TEXT, "body:piano", "the body, where it is text"),
    "class": Field(Kind.NAME, "class:crash", "the classification", tuple(map(str, ErrorClassification))),
    "state": Field(Kind.NAME, "state:discarded", "what became of the letter", STATES),
    "source": Field(Kind.NAME, "source:orders", "the source"),
    "group": Field(Kind.PREFIX, "group:3f9a", "the fingerprint, or how it begins"),
    "key": Field(Kind.NAME, "key:customer-7", "the key of the message"),
    "id": Field(Kind.NAME, "id:orders-12", "the id of the letter, or that of its message"),
    "version": Field(Kind.NAME, "version:1.4.*", "the code version of the app that gave it up"),
    "consumer": Field(Kind.NAME, "consumer:web-1*", "the consumer that gave it up"),
    "header": Field(Kind.HEADER, "header.tenant:acme", "a header, by its name"),
    "attempts": Field(Kind.NUMBER, "attempts>=3", "how many starts were charged"),
    "replays": Field(Kind.NUMBER, "replays>1", "how often it had been replayed before"),
    "age": Field(Kind.AGE, "age>1h", "the time since the last failure, in s, m, h, d or w"),
    "failed": Field(Kind.MOMENT, "failed:2026-08-01", "when it failed last: a day, or a time as 2026-08-01T09:30, in UTC"),
    "first_failed": Field(Kind.MOMENT, "first_failed<2026-08-01", "when it failed first"),
}
"""Every field by its name. `body` with a path behind it is of the kind JSON."""

MEANT = {
    "classification": "class",
    "kind": "class",
    "fingerprint": "group",
    "error_type": "error",
    "exception": "error",
    "type": "error",
    "message": "error",
    "message_id": "id",
    "letter": "id",
    "letter_id": "id",
    "payload": "body",
    "text": "body",
    "headers": "header",
    "queue": "source",
    "topic": "source",
    "stream": "source",
    "status": "state",
    "code_version": "version",
    "release": "version",
    "host": "consumer",
    "attempt": "attempts",
    "retries": "attempts",
    "replayed": "replays",
    "time": "failed",
    "last_failed": "failed",
    "failed_at": "failed",
    "last_failed_at": "failed",
    "first_failed_at": "first_failed",
    "since": "age",
    "older": "age",
    "stack": "traceback",
    "trace": "traceback",
}


def meant_field(name: str) -> str:
    """The field that was probably meant; empty if that cannot be guessed."""
    name = name.lower()
    return name if name in FIELDS else MEANT.get(name) or _closest(name, (*FIELDS, *MEANT))


def meant_value(name: str, value: str) -> str:
    """The value that was probably meant, of a field that has only a few."""
    return _closest(value.lower(), FIELDS[name].values)


def _closest(name: str, known: tuple[str, ...]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return MEANT.get(found[0], found[0]) if found else ""
