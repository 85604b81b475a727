"""What must exist before a source can be used. Missing parts are created; what exists is never changed."""

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from unpoison.brokers.redis.connection import Connection
from unpoison.brokers.redis.errors import explained
from unpoison.brokers.redis.names import SOURCES, check_tag, dlq_of
from unpoison.errors import ConfigError
from unpoison.port.broker import Finding

LIST_COSTS = (
    "The server writes each message twice more, messages have no id of their own, and any other program can pop one from the "
    "list without a trace. New messages are noticed within 0.1 s instead of at once."
)


def check_kind(connection: Connection, source: str, *, is_list: bool) -> bool:
    """Refuse a key of the wrong type. Returns whether the key exists."""
    shown = connection.address.shown
    if connection.finder.is_cluster:
        check_tag(source, shown)
    kind = connection.ask(source, ("TYPE", source))[0].decode()
    if kind == "list" and not is_list:
        raise ConfigError(
            f"Source {source!r} is a list in {shown!r}, and unpoison works on streams. To adopt the list, name it in the URL: "
            f"{shown}{'&' if '?' in shown else '?'}list={source} — {LIST_COSTS}"
        )
    if kind == "stream" and is_list:
        raise ConfigError(f"Source {source!r} is named as a list in {shown!r}, but it is a stream. Leave list={source} out.")
    if kind not in ("none", "list", "stream"):
        raise ConfigError(
            f"Source {source!r}: the key of this name in {shown!r} is a {kind}, and unpoison needs a stream. "
            f"Choose another name, or move the key: RENAME {source} {source}:old"
        )
    return bool(kind != "none")


def check_letters(connection: Connection, source: str) -> None:
    """The DLQ is a stream. A list of that name belongs to another program: it is neither changed nor written to."""
    dlq = dlq_of(source)
    kind = connection.ask(source, ("TYPE", dlq))[0].decode()
    if kind not in ("none", "stream"):
        raise ConfigError(
            f"{dlq!r} in {connection.address.shown!r} is a {kind}, and unpoison keeps the dead letters of {source!r} in a stream "
            f"of this name. It was not changed. Move it to another name: RENAME {dlq} {dlq}:old"
        )


def open_source(connection: Connection, source: str, *, create: bool, is_list: bool) -> Sequence[Finding]:
    """Check a source, and create what is missing, if `create` allows it."""
    check_kind(connection, source, is_list=is_list)
    check_letters(connection, source)
    if create:
        connection.ask(SOURCES, ("SADD", SOURCES, source))
    if not is_list:
        make_group(connection, source, create=create)
    return list(_remarks(source, is_list=is_list))


def new_group(source: str, group: str) -> tuple[str, ...]:
    """The command that creates the group, and the stream if there is none."""
    return ("XGROUP", "CREATE", source, group, "0", "MKSTREAM")


def make_group(connection: Connection, source: str, *, create: bool) -> None:
    """Create the group. It begins with the oldest entry, so it misses none."""
    group, shown = connection.address.group, connection.address.shown
    make = new_group(source, group)
    if not create:
        groups = connection.try_all(source, ("XINFO", "GROUPS", source))[0]
        if isinstance(groups, redis.exceptions.NoPermissionError):
            with explained(shown):
                raise groups
        if isinstance(groups, Exception) or group.encode() not in [flat[1] for flat in groups]:
            raise ConfigError(
                f"Source {source!r} has no stream with the group {group!r} in {shown!r}, and create=False forbids creating it. "
                f"Check the name; to create it: {' '.join(make)}"
            )
        return
    answer: Any = connection.try_all(source, make)[0]
    if isinstance(answer, redis.ResponseError) and "BUSYGROUP" not in str(answer):
        with explained(shown):
            raise answer


def _remarks(source: str, *, is_list: bool) -> Iterator[Finding]:
    if is_list:
        yield Finding(
            "list-source",
            f"Source {source!r} is a list. {LIST_COSTS}",
            f"Have its producers write to a stream: XADD {source} * body <message>, and leave list={source} out of the URL.",
        )
