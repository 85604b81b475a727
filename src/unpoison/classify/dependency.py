"""On what did an attempt fail: which server, or which place in the user's code?

Clients tell the address of the server in their exceptions, each in its own way, or in an exception that theirs was raised from.
Where none does, the attempt to connect may be in a traceback. Else failures are alike if their type and the last line of the
user's own code are. No client is imported for it, and what an attribute holds is not trusted.
"""

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from unpoison.classify.asked_waits import call
from unpoison.classify.server_replies import read
from unpoison.errors import Steering
from unpoison.model.failure import chain_of, trace_of, type_name
from unpoison.model.frames import of_user
from unpoison.model.message import DEPENDENCY_LIMIT

_PORTS = {"http": 80, "https": 443}
_ASYNCIO = str(Path("asyncio", "base_events.py"))

_CONNECTING = re.compile(r"connecting to ([^\s:]+):(\d+)")
_SERVER_AT = re.compile(r'server at "([^"]+)"(?: \([^)]*\))?, port (\d+)')
_FIRST_ADDRESS = re.compile(r"^([\w.-]+):(\d+)")


class Dependency(NamedTuple):
    """What a failure is attributed to. `is_named`: by an address, or by the user; otherwise by type and place."""

    name: str
    is_named: bool


NO_DEPENDENCY = Dependency("", False)


def dependency_of(error: BaseException) -> Dependency:
    """Never raises, whatever the exception does."""
    try:
        if given := named_by_handler(error):
            return Dependency(given, True)
        chain = chain_of(error)
        found = next(filter(None, map(_address, chain)), None) or next(filter(None, map(_dialled, chain)), None)
        return Dependency(_short(found), True) if found else Dependency(_place(error), False)
    except BaseException:  # user code may raise anything, even from an attribute
        return Dependency(_short(type_name(type(error))), False)


def named_by_handler(error: BaseException) -> str:
    """The dependency that the handler named when it raised this to steer; empty if it named none."""
    given = read(error, "dependency") if issubclass(type(error), Steering) else None
    return _short(given) if isinstance(given, str) else ""


def _short(name: str) -> str:
    """One line, that can be stored and sent with a message."""
    return " ".join(name.encode("utf-8", "replace").decode().replace("\0", "\ufffd").split())[:DEPENDENCY_LIMIT]


def _address(error: BaseException) -> str | None:
    for kind in type(error).__mro__:
        if reader := _READERS.get(kind.__module__.partition(".")[0]):
            return reader(error)
    return None


def _of_request(error: BaseException) -> str | None:
    """requests and httpx keep the request."""
    return _of_url(read(read(error, "request"), "url"))


def _aiohttp(error: BaseException) -> str | None:
    host, port = read(error, "host"), read(error, "port")
    return _joined(host, port) or _of_url(read(read(error, "request_info"), "url"))


def _urllib3(error: BaseException) -> str | None:
    for name in ("conn", "pool"):
        if found := _joined(read(read(error, name), "host"), read(read(error, name), "port")):
            return found
    return None


def _urllib(error: BaseException) -> str | None:
    return _of_url(read(error, "url"))


def _botocore(error: BaseException) -> str | None:
    return _of_url(call(read(error, "kwargs"), "get", "endpoint_url"))


def _in_text(pattern: re.Pattern[str]) -> Callable[[BaseException], str | None]:
    def find(error: BaseException) -> str | None:
        text = next(iter(error.args), None)
        found = pattern.search(text[:500]) if isinstance(text, str) else None
        return f"{found[1]}:{found[2]}" if found else None

    return find


_READERS: Mapping[str, Callable[[BaseException], str | None]] = {
    "requests": _of_request,
    "httpx": _of_request,
    "aiohttp": _aiohttp,
    "urllib3": _urllib3,
    "urllib": _urllib,
    "botocore": _botocore,
    "redis": _in_text(_CONNECTING),
    "psycopg": _in_text(_SERVER_AT),
    "psycopg2": _in_text(_SERVER_AT),
    "pymongo": _in_text(_FIRST_ADDRESS),
}
"""By the package of the exception's class."""


def _dialled(error: BaseException) -> str | None:
    """Where the standard library was connecting to: what smtplib, PyMySQL or asyncpg raise does not say it."""
    for frame in _frames(error):
        code, local = frame.f_code, frame.f_locals
        if code is socket.create_connection.__code__:
            address = local.get("address")
            return _joined(*address[:2]) if isinstance(address, tuple) and len(address) > 1 else None
        if code.co_name == "create_connection" and code.co_filename.endswith(_ASYNCIO):
            return _joined(local.get("host"), local.get("port"))
    return None


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = trace_of(error)
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _of_url(url: object) -> str | None:
    """Host and port alone: a URL may hold a password, and its path is another one for each message."""
    try:
        parts = urlsplit(str(url)) if url is not None else None
        return _joined(parts.hostname, parts.port or _PORTS.get(parts.scheme)) if parts else None
    except ValueError:
        return None


def _joined(host: Any, port: Any) -> str | None:
    return f"{host}:{port}" if isinstance(host, str) and host and isinstance(port, int) else None


def _place(error: BaseException) -> str:
    """Type, file and function. No line number: it changes with each release."""
    codes = [frame.f_code for frame in _frames(error)]
    users = of_user([code.co_filename for code in codes])
    name = type_name(type(error))
    return _short(f"{name} in {PurePath(codes[users[-1]].co_filename).name}:{codes[users[-1]].co_name}" if users else name)
