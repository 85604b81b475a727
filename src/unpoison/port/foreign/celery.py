"""Which task is a message of Celery about?

Celery's protocol 2 has the name and the id of the task in headers, and `[args, kwargs, …]` in the body. Where the broker has no
headers (Redis, SQS) the whole message is one JSON text, as `celery_message.wrapped` makes it. A body that is not JSON, such as a
pickle, is not read: the headers `argsrepr` and `kwargsrepr` tell what is in it.

The body stays what it is: a replay sends the message as Celery wrote it.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from unpoison.port.foreign.told import Facts, Told, count, known, text
from unpoison.port.serialization import UNREADABLE

MOST_BODY = 1024 * 1024
"""Bytes of a body in which arguments are looked for."""
HEADERS = ("lang", "task", "id", "root_id", "argsrepr", "kwargsrepr", "retries", "origin", "eta")
"""Those that are read."""

_object = msgspec.json.Decoder(dict[str, Any]).decode
_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode


def facts(headers: Mapping[str, Any], body: bytes) -> Facts:
    """The task, its id, its arguments; empty if Celery has not written this."""
    found = _from_headers(headers, body)
    return found or _from_wrapped(body)


def _from_headers(headers: Mapping[str, Any], body: bytes) -> Facts:
    task, id_ = text(headers.get("task")), text(headers.get("id"))
    if not task or not id_ or not ({"lang", "argsrepr", "root_id", "origin"} & headers.keys()):
        return {}
    args, kwargs = arguments(body)
    return known(
        {
            "task": task,
            "task_id": id_,
            "args": args or text(headers.get("argsrepr")),
            "kwargs": kwargs or text(headers.get("kwargsrepr")),
            "retries": text(headers.get("retries")),
            "origin": text(headers.get("origin")),
            "eta": text(headers.get("eta")),
        }
    )


def _from_wrapped(body: bytes) -> Facts:
    """As kombu writes a message where there are no headers; on SQS it is base64 as a whole."""
    if len(body) > MOST_BODY:
        return {}
    for data in (body, _unwrapped(body)):
        if b'"content-type"' in data and b'"task"' in data:
            try:
                found = _object(data)
                headers, inner = found["headers"], found["body"]
                is_base64 = found.get("properties", {}).get("body_encoding") == "base64"
                content = base64.b64decode(inner, validate=True) if is_base64 else inner.encode()
                return _from_headers(headers, content)
            except (*UNREADABLE, KeyError, AttributeError):
                return {}
    return {}


def _unwrapped(body: bytes) -> bytes:
    try:
        return base64.b64decode(body, validate=True) if body.startswith(b"eyJ") else b""
    except (binascii.Error, ValueError):
        return b""


def arguments(body: bytes) -> tuple[str, str]:
    """Positional and named arguments as JSON text; empty if the body is not of protocol 2, or not JSON."""
    if len(body) > MOST_BODY or body[:1] != b"[":
        return "", ""
    try:
        args, kwargs, _ = _parts(body)
    except UNREADABLE:
        return "", ""
    return text(bytes(args)), text(bytes(kwargs))


def attempts(found: Facts) -> int:
    """Starts, of a task that was retried so often."""
    retries = text(found.get("retries"))
    return count(retries) + 1 if retries.isdecimal() else 0


def with_task(told: Told | None, found: Facts, rule: str) -> Told | None:
    """What is told, with the task; of a task of which nothing else is told, that it is one."""
    if not found:
        return told
    told = told or Told(rule=f"{rule}: task {found['task']!r} of Celery")
    tried = max(told.attempts, attempts(found))
    return msgspec.structs.replace(told, original={**told.original, **found}, attempts=tried)
