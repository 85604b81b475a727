"""For how long did the server ask us to wait?

HTTP servers say it in one of these, and the first that can be read counts:

    Retry-After               seconds, or a date
    Retry-After-Ms            milliseconds
    RateLimit                 reset=30 or t=30, in seconds: the two forms of the IETF draft
    RateLimit-Reset           seconds, in its earlier versions
    X-RateLimit-Reset         and X-Rate-Limit-Reset: seconds, a date, or the time since 1970 in seconds or milliseconds

A time of day is read against the server's own Date header: its clock and ours may differ. gRPC servers send a RetryInfo among
the details of the status, or the trailer grpc-retry-pushback-ms.
"""

import email.utils
import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

_RESETS = ("RateLimit-Reset", "X-RateLimit-Reset", "X-Rate-Limit-Reset")
_RESET_PARAMETER = re.compile(r"(?:^|[;,\s])(?:reset|t)=(\d+)")
_EPOCH_FROM, _EPOCH_IN_MS_FROM = 1e9, 1e12
"""Numbers from here on are no number of seconds to wait, but a time since 1970."""

_STATUS_DETAILS, _PUSHBACK = "grpc-status-details-bin", "grpc-retry-pushback-ms"
_NEGATIVE = 2**63
"""From here on the number on the wire stands for one below zero."""
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"


def header(headers: object, name: str) -> str | None:
    """Clients' own header types ignore case; botocore hands out a dict of lower-case names."""
    value = call(headers, "get", name)
    if value is None:
        value = call(headers, "get", name.lower())
    return value.strip() if isinstance(value, str) else None


def call(thing: object, name: str, *arguments: object) -> Any:
    """What a method answers, or None: it may raise anything."""
    try:
        return getattr(thing, name)(*arguments)
    except BaseException:
        return None


def of_http(headers: object) -> float | None:
    """Seconds, or None if the headers do not say it in a way that can be read."""
    date = header(headers, "Date")
    if (wait := _seconds(header(headers, "Retry-After"), date)) is not None:
        return wait
    if (wait := _number(header(headers, "Retry-After-Ms"))) is not None:
        return wait / 1000
    if found := _RESET_PARAMETER.search(header(headers, "RateLimit") or ""):
        return float(found[1])
    return next((wait for name in _RESETS if (wait := _until_reset(header(headers, name), date)) is not None), None)


def _seconds(text: str | None, date: str | None) -> float | None:
    wait = _number(text)
    return _between(date, text) if wait is None else wait


def _until_reset(text: str | None, date: str | None) -> float | None:
    number = _number(text)
    if number is None or number < _EPOCH_FROM:
        return _seconds(text, date)
    now = _moment(date)
    return None if now is None else max(0.0, (number / 1000 if number >= _EPOCH_IN_MS_FROM else number) - now.timestamp())


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _between(start: str | None, end: str | None) -> float | None:
    first, last = _moment(start), _moment(end)
    if first is None or last is None or (first.tzinfo is None) != (last.tzinfo is None):
        return None
    return max(0.0, (last - first).total_seconds())


def _moment(text: str | None) -> datetime | None:
    try:
        return email.utils.parsedate_to_datetime(text or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def of_grpc(error: BaseException) -> float | None:
    """Seconds, or None if the status does not say it."""
    try:
        trailers = dict(call(error, "trailing_metadata") or ())
        wait = _retry_delay(trailers.get(_STATUS_DETAILS, b""))
    except BaseException:  # whatever a server or a test double puts there
        return None
    if wait is None and (pushback := _number(_text(trailers.get(_PUSHBACK)))) is not None:
        wait = pushback / 1000
    return wait


def _text(value: object) -> str | None:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else None


def _retry_delay(status: bytes) -> float | None:
    """google.rpc.Status: details (3) are Any: a type (1) and a value (2); RetryInfo has a Duration (1) of seconds and nanos."""
    for detail in _fields(status, 3):
        if _RETRY_INFO in _fields(detail, 1):
            for duration in (each for value in _fields(detail, 2) for each in _fields(value, 1)):
                seconds, nanos = (next(iter(_fields(duration, number)), 0) for number in (1, 2))
                return 0.0 if seconds >= _NEGATIVE else float(seconds) + nanos / 1e9
    return None


def _fields(data: bytes, wanted: int) -> list[Any]:
    """The values of one field of a protobuf message: bytes or whole numbers. Reading it by hand saves a dependency on protobuf,
    which the handler's environment may have in any version, or not at all."""
    return [value for number, value in _each_field(data) if number == wanted]


def _each_field(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def varint() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    def piece(size: int) -> bytes:
        nonlocal at
        if at + size > len(data):
            raise IndexError(size)
        at += size
        return data[at - size : at]

    readers: dict[int, Callable[[], Any]] = {0: varint, 1: lambda: piece(8), 2: lambda: piece(varint()), 5: lambda: piece(4)}
    while at < len(data):
        key = varint()
        if key & 7 not in readers:
            raise IndexError(key)
        yield key >> 3, readers[key & 7]()
