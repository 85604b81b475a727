"""Which message is inside of a JSON text that a program has put into a DLQ?

Two forms are common, on every broker. The envelope of a message:

    {"original_topic": …, "original_partition": …, "original_offset": …, "original_key": …, "original_value": …,
     "error": …, "classification": …, "failed_at": …}

and the one of a task of Celery:

    {"task_name": …, "task_id": …, "args": […], "kwargs": {…}, "error": …, "traceback": …, "failed_at": …}

The value may be a text, which is the body; a JSON value, whose characters in the envelope are the body, null too, but for a
tombstone where there are any; or bytes as base64. Of base64 the envelope says so (`original_value_encoding` or `encoding`), or it
holds a JSON object or array, which no other text happens to be. Any other text is taken as it is.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from unpoison.port.foreign import celery_message
from unpoison.port.foreign.told import (
    MOST_HEADERS,
    Content,
    Told,
    classification,
    count,
    known,
    long_text,
    moment,
    name,
    number,
    place,
    text,
    trace,
)
from unpoison.port.serialization import UNREADABLE

Fields = Mapping[str, msgspec.Raw]

_TELLING = frozenset(("error", "error_type", "error_message", "classification", "failed_at", "traceback"))
"""What makes it a dead letter: one of these at least."""
_ENCODINGS = ("original_value_encoding", "value_encoding", "encoding")
_KEY_ENCODINGS = ("original_key_encoding", "key_encoding")
_TRACEBACKS = ("traceback", "stack_trace", "stacktrace")
_ATTEMPTS = ("attempts", "attempt", "retry_count", "retries")
_TYPE_AND_TEXT = re.compile(r"((?:[A-Za-z_$][\w$]*\.){0,20}[A-Z][\w$]*): (.*)", re.DOTALL)
"""An error in one line, as Python and Java write it."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_document = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw]).decode


def read(body: bytes, *, has_headers: bool = True, has_tombstones: bool = False) -> Told | None:
    """What this body tells; None if it is of neither form.

    `has_headers` is False where a task of Celery is one text; `has_tombstones` is whether a null is more than JSON there.
    """
    if b'"original_value"' not in body and b'"task_name"' not in body:
        return None
    try:
        fields = _fields(body)
        if not _TELLING & fields.keys():
            return None
        if {"original_topic", "original_value"} <= fields.keys():
            return _envelope(fields, has_tombstones=has_tombstones)
        return _task(fields, has_headers=has_headers) if {"task_name", "args", "kwargs"} <= fields.keys() else None
    except UNREADABLE:
        return None


def _value(fields: Fields, *names: str) -> Any:
    """The value under the first of these names that is there and not null. May raise."""
    values = (msgspec.json.decode(fields[each]) for each in names if each in fields)
    return next((value for value in values if value is not None), None)


def _envelope(fields: Fields, *, has_tombstones: bool) -> Told:
    value = partial(_value, fields)
    topic = place(value("original_topic"))
    kind, error, traceback = _failure(fields)
    body, encoding = _bytes(fields["original_value"], value(*_ENCODINGS))
    is_tombstone = body is None and has_tombstones
    key, _ = _bytes(fields.get("original_key"), value(*_KEY_ENCODINGS))
    told_class = text(value("classification"))
    return Told(
        rule=f"another program dead-lettered it from {topic!r}",
        source=topic,
        reason=f"{told_class}: {error}" if told_class and error else error or told_class,
        error_type=kind,
        error=error,
        traceback=traceback,
        classification=classification(told_class),
        first_failed_at=moment(value("first_failed_at")),
        last_failed_at=moment(value("failed_at")),
        attempts=count(value(*_ATTEMPTS)),
        original=known(
            {
                "topic": topic,
                "partition": number(value("original_partition")),
                "offset": number(value("original_offset")),
                "key": "" if key is None else text(key),
                "timestamp": text(value("original_timestamp")),
                "classification": told_class,
                "group": text(value("consumer_group", "group")),
                "value_encoding": encoding,
            }
        ),
        content=Content(
            body=(b"" if is_tombstone else b"null") if body is None else body,
            key=key,
            is_key_told="original_key" in fields,
            is_tombstone=is_tombstone,
            headers=_headers(value("original_headers")),
        ),
    )


def _bytes(raw: msgspec.Raw | None, told_encoding: object) -> tuple[bytes | None, str]:
    """The bytes of a value, and how they were written; None for a null. May raise."""
    data = b"null" if raw is None else bytes(raw)
    if data == b"null":
        return None, ""
    if data[:1] != b'"':
        return data, "json"
    found = str(msgspec.json.decode(data)).encode()
    if text(told_encoding).lower() in ("base64", "b64"):
        decoded = _from_base64(found)
        return (found, "text") if decoded is None else (decoded, "base64")
    decoded = _from_base64(found) if found[:1] in (b"e", b"W") else None  # as an object and an array begin in base64
    return (decoded, "base64") if decoded is not None and _is_document(decoded) else (found, "text")


def _from_base64(data: bytes) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def _is_document(data: bytes) -> bool:
    try:
        _document(data)
    except UNREADABLE:
        return False
    return True


def _headers(found: object) -> Mapping[str, str] | None:
    """Those of the original message; in an envelope that tells none, the sender's are not known to be others."""
    if not isinstance(found, dict):
        return None
    return {text(each): text(value, 4_000) for each, value in list(found.items())[:MOST_HEADERS]}


def _failure(fields: Fields) -> tuple[str, str, str]:
    """Type, text and traceback of the error: texts, or an object of these."""
    found = _value(fields, "error", "error_message", "exception")
    inner = found if isinstance(found, dict) else {}
    if inner:
        found = inner.get("message") or inner.get("msg") or ""
    kind = name(_value(fields, "error_type", "exception_type") or inner.get("type") or inner.get("class"))
    error = long_text(found)
    if not kind and (split := _TYPE_AND_TEXT.fullmatch(error)):
        kind, error = name(split[1]), split[2]
    shown = _value(fields, *_TRACEBACKS) or inner.get("traceback") or inner.get("stack")
    return kind, error, trace("\n".join(map(text, shown)) if isinstance(shown, list) else shown)


def _task(fields: Fields, *, has_headers: bool) -> Told | None:
    """The task as Celery would send it anew. Arguments that are no JSON list and object cannot be sent."""
    value = partial(_value, fields)
    args, kwargs = bytes(fields["args"]), bytes(fields["kwargs"])
    task, id_ = text(value("task_name")), text(value("task_id"))
    if args[:1] != b"[" or kwargs[:1] != b"{" or not task:
        return None
    queue = place(value("queue", "original_queue"))
    kind, error, traceback = _failure(fields)
    body = celery_message.body_of(args, kwargs)
    headers = celery_message.headers_of(task, id_, text(args), text(kwargs))
    content = Content(body, headers=headers, content_type="application/json")
    if not has_headers:
        content = Content(celery_message.wrapped(headers, body, queue), headers={})
    return Told(
        rule=f"another program dead-lettered task {task!r} of Celery",
        source=queue,
        reason=error,
        error_type=kind,
        error=error,
        traceback=traceback,
        classification=classification(value("classification")),
        last_failed_at=moment(value("failed_at")),
        attempts=count(value(*_ATTEMPTS)),
        original=known({"queue": queue, "task": task, "task_id": id_, "args": text(args), "kwargs": text(kwargs)}),
        content=content,
    )
