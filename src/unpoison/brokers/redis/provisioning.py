"""What must exist before a source can be used: checked and created when it is opened, or listed for an administrator.

What exists is never changed.
"""

import re
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any

import redis

from unpoison.brokers.redis.connection import Connection
from unpoison.brokers.redis.errors import explained
from unpoison.brokers.redis.names import SOURCES, check_tag, dlq_of, keys_of, owner_channel
from unpoison.brokers.redis.url import Address, address
from unpoison.errors import ConfigError, UnpoisonError
from unpoison.port.broker import Finding
from unpoison.port.provisioning import Needs, Step, no_user

LIST_COSTS = (
    "The server writes each message twice more, messages have no id of their own, and any other program can pop one from the "
    "list without a trace. New messages are noticed within 0.1 s instead of at once."
)

SETUP = """\
# How an administrator logs in: REDIS_ADMIN=name REDISCLI_AUTH=password sh FILE; without REDIS_ADMIN it is the user 'default'
{place}
ask() {{ redis-cli {options}-h "$host" -p "$port" ${{REDIS_ADMIN:+--user "$REDIS_ADMIN"}} "$@" 2>&1; }}
cli() {{  # COMMAND…; a group that exists stays as it is
    answer=$(ask "$@") || true
    case "$answer" in
        *ERR\\ *|NO[AP]*|WRONG*|MOVED*|*"Could not connect"*|*onnection\\ refused*) echo "$*: $answer" >&2; exit 1 ;;
    esac
}}"""

CATEGORIES = ("@read", "@write", "@stream", "@scripting", "@pubsub", "@connection", "@transaction")
COMMANDS = ("time", "info")
SINCE_7_2 = "waitaof"
"""Used to wait until the server has a suspect's start on disk."""

_GLOB = re.compile(r"([\\*?\[\]])")


def check_kind(connection: Connection, source: str) -> bool:
    """Refuse a key of the wrong type. Returns whether the key exists."""
    shown, is_list = connection.address.shown, source in connection.address.lists
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
    dlq = dlq_of(connection.address, source)
    kind = connection.ask(source, ("TYPE", dlq))[0].decode()
    if kind not in ("none", "stream"):
        raise ConfigError(
            f"{dlq!r} in {connection.address.shown!r} is a {kind}, and unpoison keeps the dead letters of {source!r} in a stream "
            f"of this name. It was not changed. Move it to another name: RENAME {dlq} {dlq}:old"
        )


def open_source(connection: Connection, source: str, *, create: bool) -> Sequence[Finding]:
    """Check a source, and create what is missing, if `create` allows it."""
    check_kind(connection, source)
    check_letters(connection, source)
    if create:
        connection.ask(SOURCES, ("SADD", SOURCES, source))
    if source in connection.address.lists:
        return [list_source(source)]
    make_group(connection, source, create=create)
    return []


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


def list_source(source: str) -> Finding:
    return Finding(
        "list-source",
        f"Source {source!r} is a list. {LIST_COSTS}",
        f"Change its producers to a stream, and remove list={source} from the URL:\nXADD {source} * body <message>",
    )


def needs(url: str, sources: Sequence[str], user: str | None = None) -> Needs:
    where = address(url)
    user = user or where.options.get("username")
    steps, unseen, is_cluster = _looked_for(where, sources, user)
    notes = [] if user else [no_user("an ACL user")]
    if is_cluster and user:
        notes.append("This is a cluster: every node has its own users. Run the ACL lines on each of them.")
    options = f"{'-c ' if is_cluster else ''}{'--tls ' if where.kind.__name__ == 'SSLConnection' else ''}"
    database = f"-n {where.options['db']} " if where.options.get("db") else ""
    setup = SETUP.format(place=_place(where), options=options + database)
    return Needs(f"Redis at {where.shown}", steps, tuple(setup.splitlines()), unseen, tuple(notes))


def rights(where: Address, sources: Sequence[str]) -> list[str]:
    """Rules of an ACL user: the keys of these sources and no others, and the channels of owners."""
    names = dict.fromkeys([*(key for source in sources for key in keys_of(where, source)), SOURCES])
    keys = ["~" + _GLOB.sub(r"\\\1", name) for name in names]
    return [*keys, f"&{owner_channel('*')}", *(f"+{name}" for name in (*CATEGORIES, *COMMANDS))]


def _place(where: Address) -> str:
    host, port = where.hosts[0]
    if where.service is None:
        return f"host={quote(host)} port={port}"
    ask = f"redis-cli -h {quote(host)} -p {port} SENTINEL get-master-addr-by-name {quote(where.service)}"
    return f"set -- $({ask})\nhost=$1 port=$2"


def _looked_for(where: Address, sources: Sequence[str], user: str | None) -> tuple[list[Step], str, bool]:
    connection, unseen, known = Connection(where), "", dict[str, bool]()
    try:
        connection.open(sources[0] if sources else SOURCES)
        for source in sources:
            known[source] = source in where.lists or _has_group(connection, source)
        names = {name.decode() for name in connection.ask(SOURCES, ("SMEMBERS", SOURCES))[0]}
        known |= {f"{SOURCES} {source}": source in names for source in sources}
        known["rights"] = user is not None and all(_may(connection, user, where, source) for source in sources)
    except UnpoisonError as error:
        unseen = str(error)
    finally:
        connection.close()
    return list(_steps(where, sources, user, known)), unseen, bool(connection.finder.is_cluster)


def _steps(where: Address, sources: Sequence[str], user: str | None, known: dict[str, bool]) -> Iterator[Step]:
    for source in sources:
        if source not in where.lists:
            command = " ".join(quote(word) for word in new_group(source, where.group))
            why = f"the stream of source {source!r} and its consumer group, which begins with the oldest entry."
            yield Step("group", f"{where.group} of {source}", why, (f"cli {command}",), known.get(source, False))
        why = "so that unpoison dlq and doctor find it without --source."
        listed = known.get(f"{SOURCES} {source}", False)
        yield Step("entry", f"{source} in {SOURCES}", why, (f"cli SADD {SOURCES} {quote(source)}",), listed)
    if user:
        start = f"ACL SETUSER {quote(user)}"
        rules = " ".join(quote(rule) for rule in rights(where, sources))
        newer = f'[ -z "$(ask COMMAND INFO {SINCE_7_2})" ] || cli {start} +{SINCE_7_2}'
        why = "to use these keys, beside what it may do already. Its password is set by: ACL SETUSER NAME on '>PASSWORD'"
        yield Step("rights", user, why, (f"cli {start} {rules}", newer), known.get("rights", False))


def _has_group(connection: Connection, source: str) -> bool:
    groups = connection.try_all(source, ("XINFO", "GROUPS", source))[0]
    return not isinstance(groups, Exception) and connection.address.group.encode() in [flat[1] for flat in groups]


def _may(connection: Connection, user: str, where: Address, source: str) -> bool:
    """Whether the server lets this user do all that a source needs; False where it cannot be asked (before Redis 7)."""
    questions: list[tuple[Any, ...]] = [("HSET", key, "f", "v") for key in keys_of(where, source)]
    questions += [("HGET", key, "f") for key in keys_of(where, source)]
    questions += [
        ("XREADGROUP", "GROUP", where.group, "c", "STREAMS", source, ">"),
        ("EVALSHA", "0" * 40, 1, source),
        ("SUBSCRIBE", owner_channel("x")),
        ("SMEMBERS", SOURCES),
        ("SCRIPT", "LOAD", "return 1"),
        ("MULTI",),
        ("TIME",),
        ("INFO",),
    ]
    answers = connection.try_all(source, *(("ACL", "DRYRUN", user, *question) for question in questions))
    return all(answer == b"OK" for answer in answers)
