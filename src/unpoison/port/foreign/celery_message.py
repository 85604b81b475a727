"""How does Celery write the message of a task, for a worker that is to run what was given up? This is its protocol 2."""

import base64
import json
from collections.abc import Mapping

NOTHING_MORE = b'{"callbacks":null,"errbacks":null,"chain":null,"chord":null}'
"""The third part of a body of protocol 2, of a task that stands alone."""


def body_of(args: bytes, kwargs: bytes) -> bytes:
    """The body, of arguments in JSON."""
    return b"[" + args + b"," + kwargs + b"," + NOTHING_MORE + b"]"


def headers_of(task: str, id_: str, args: str, kwargs: str) -> dict[str, str]:
    """Headers of protocol 2 that a worker needs."""
    return {"lang": "py", "task": task, "id": id_, "root_id": id_, "argsrepr": args, "kwargsrepr": kwargs, "origin": "unpoison"}


def wrapped(headers: Mapping[str, str], body: bytes, queue: str) -> bytes:
    """A message of protocol 2 for a broker without headers, as kombu writes it."""
    properties = {
        "correlation_id": headers["id"],
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": headers["id"],
    }
    message = {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties,
    }
    return json.dumps(message).encode()
