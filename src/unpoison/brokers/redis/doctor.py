"""The doctor of Redis: what is wrong with the server and the keys of sources, as far as this user may see.

Every question is a command that only reads.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import redis

from unpoison.brokers.redis import server_checks
from unpoison.brokers.redis.connection import Connection
from unpoison.brokers.redis.envelope import position_of
from unpoison.brokers.redis.errors import explained
from unpoison.brokers.redis.names import DLQ, HELD, OWNERS, SOURCES, dlq_of, keys_of, owner_channel
from unpoison.brokers.redis.provisioning import list_source
from unpoison.brokers.redis.server_checks import Look, NotAllowed
from unpoison.brokers.redis.url import address
from unpoison.port import findings
from unpoison.port.broker import Finding

_OF_KEYS = ("stream-trimmed", "key-expires", "wrong-type", "other-groups", "list-source")
NAMES = (*server_checks.NAMES, *_OF_KEYS, "source-missing", "vanished-consumer", "many-dead-letters")
DEEP = ()

Checks = dict[str, Callable[[Look], Iterator[Finding]]]

GROWN = 10_000
"""Entries of a stream with other groups above which it is reported."""

LOOKED_AT = 1_000
"""How many held entries are checked, the oldest."""


def examine(url: str, wanted: Sequence[str], longest: float | None, *, deep: bool = False) -> Sequence[Finding]:  # noqa: ARG001
    """All findings. No check takes long, so `deep` adds none."""
    with _connected(url, wanted[0] if wanted else SOURCES) as connection:
        known: list[str] = []
        found = _every(Look(connection, SOURCES), {"which sources there are": partial(_of_names, wanted, known)})
        names = list(wanted or known)
        by_host = {connection.finder.host_of(name): name for name in (names or [SOURCES])}
        for key in by_host.values():  # one for each node of a cluster that has keys of ours
            said = [each.name for each in found]
            found += [each for each in _every(Look(connection, key), server_checks.CHECKS) if each.name not in said]
        for name in names:
            found += _every(Look(connection, name), {what.format(name): check for what, check in SOURCE_CHECKS.items()})
        return found


def known_sources(url: str) -> Sequence[str]:
    """The sources that this server has been used for."""
    with _connected(url, SOURCES) as connection:
        return sorted(name.decode() for name in connection.ask(SOURCES, ("SMEMBERS", SOURCES))[0])


def adopted(url: str, source: str) -> Sequence[Finding]:
    with _connected(url, source) as connection:
        return _every(Look(connection, source), {"whether its keys expire": _of_expiry})


@contextmanager
def _connected(url: str, key: str) -> Iterator[Connection]:
    connection = Connection(address(url))
    connection.open(key)
    with closing(connection), explained(connection.address.shown):
        yield connection


def _every(look: Look, checks: Checks) -> list[Finding]:
    """Run each check on its own: one that this user may not run does not stop the others."""
    found: list[Finding] = []
    for what, check in checks.items():
        try:
            found += check(look)
        except NotAllowed as error:
            fix = f"Run it as another user, or allow it:\nACL SETUSER {error.user} +{error.command}"
            found.append(findings.cannot_look(what, f"The server said: {error}.", fix))
        except redis.ResponseError as error:
            found.append(findings.cannot_look(what, f"The server said: {error}.", "See with redis-cli what the key holds."))
    return found


def _of_names(wanted: Sequence[str], known: list[str], look: Look) -> Iterator[Finding]:
    """About sources that were never used. The others are added to `known`."""
    known += sorted(name.decode() for name in look.ask("SMEMBERS", SOURCES))
    there = {*known, *(name for name in wanted if Look(look.connection, name).kind(name) != "none")}
    yield from findings.of_sources(wanted, there, look.shown)


def _of_kinds(look: Look) -> Iterator[Finding]:
    source, is_list = look.key, look.key in look.connection.address.lists
    dlq = dlq_of(look.connection.address, source)
    kind, dlq_kind = look.kind(source), look.kind(dlq)
    if kind not in ("none", "list" if is_list else "stream"):
        yield Finding(
            "wrong-type",
            f"{source!r} is a {kind}, and unpoison needs a {'list' if is_list else 'stream'} there: an app does not start.",
            f"To adopt a list, name it in the URL: ?list={source}. Else move what is there to another name:\n"
            f"RENAME {source} {source}:old",
            stops=True,
        )
    if dlq_kind not in ("none", "stream"):
        yield Finding(
            "wrong-type",
            f"{dlq!r} is a {dlq_kind}, and unpoison keeps dead letters in a stream of this name: no app starts.",
            f"Another program uses it. Move it to another name:\nRENAME {dlq} {dlq}:old",
            stops=True,
        )
    if is_list:
        yield list_source(source)


def _of_expiry(look: Look) -> Iterator[Finding]:
    expiring = [key for key in keys_of(look.connection.address, look.key) if look.ask("TTL", key) >= 0]
    if expiring:
        yield Finding(
            "key-expires",
            f"These keys have a time to live: {', '.join(map(repr, expiring))}. When it is over, everything in them is lost.",
            "Remove it:\n" + "\n".join(f"PERSIST {key}" for key in expiring),
            loses=True,
        )


def _of_trimming(look: Look) -> Iterator[Finding]:
    """MAXLEN is in the commands of producers; only its effect can be seen."""
    if _our_group(look) is None:
        return
    source = look.key
    pending = [entry[0] for entry in look.ask("XPENDING", source, look.group, "-", "+", LOOKED_AT)]
    held = sum(1 for no in pending if not look.ask("XRANGE", source, no, no))
    unread = _trimmed_unread(look)
    if held or unread:
        gone = [f"{held:,} that consumers hold"] * bool(held) + [f"{unread:,} unread"] * bool(unread)
        yield Finding(
            "stream-trimmed",
            f"Messages were trimmed from the stream {source!r} before they were finished: {' and '.join(gone)}. A program "
            f"writes to it with MAXLEN or MINID, or runs XTRIM. Unread ones are lost. unpoison itself removes finished ones: "
            f"no trimming is needed.",
            f"Remove MAXLEN and MINID from the XADD of every producer of {source}, and stop what runs XTRIM on it.",
            loses=True,
        )


def _trimmed_unread(look: Look) -> int:
    """How many more entries the group has still to read, as the server counts, than exist: trimming does not correct it.

    Both numbers are read at one moment: a consumer might finish some in between.
    """
    *_, answers = look.connection.try_all(look.key, ("MULTI",), ("XINFO", "GROUPS", look.key), ("XLEN", look.key), ("EXEC",))
    if not isinstance(answers, list) or isinstance(answers[0], Exception):
        return 0
    groups = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in answers[0]]
    lag = next((each.get(b"lag") for each in groups if each[b"name"].decode() == look.group), None)
    return 0 if lag is None else max(0, lag - answers[1])


def _of_groups(look: Look) -> Iterator[Finding]:
    if look.kind(look.key) != "stream":
        return
    groups = look.table("XINFO", "GROUPS", look.key)
    others = [each["name"].decode() for each in groups if each["name"].decode() != look.group]
    size = look.ask("XLEN", look.key)
    if others and size > GROWN:
        safe = _finished_by_all(look, groups)
        yield Finding(
            "other-groups",
            f"{look.key!r} has the groups {', '.join(map(repr, others))} beside {look.group!r}, and {size:,} entries. While "
            f"there are others, unpoison removes nothing from it, since they may not have read it: the stream grows for ever.",
            "Destroy unused groups (XGROUP DESTROY), or trim regularly what all of them have finished; now that is: "
            f"\nXTRIM {look.key} MINID {safe}",
        )


def _finished_by_all(look: Look, groups: list[dict[str, Any]]) -> str:
    """The first entry that a group has still to read or to finish."""
    bounds = []
    for group in groups:
        last = position_of(group["last-delivered-id"])
        oldest = look.ask("XPENDING", look.key, group["name"], "-", "+", 1)
        bounds.append(position_of(oldest[0][0]) if oldest else (last[0], last[1] + 1))
    return "{}-{}".format(*min(bounds))


def _of_vanished(look: Look) -> Iterator[Finding]:
    keys = keys_of(look.connection.address, look.key)
    seconds, micros = map(int, look.ask("TIME"))
    held = [holder.decode().removeprefix("!") for holder in look.ask("HVALS", keys[HELD])]
    consumers = look.table("XINFO", "CONSUMERS", look.key, look.group) if _our_group(look) else []
    pending = {each["name"].decode(): each["pending"] for each in consumers}
    for owners in look.table("HGETALL", keys[OWNERS]):
        for name, text in owners.items():
            till, run, is_subscribed, host, pid, *_ = text.decode().split(" ")
            is_silent = float(till) < seconds * 1000 + micros / 1000
            counts = is_subscribed == "1" and run == look.connection.node(look.key).run
            is_cut = counts and not look.ask("PUBSUB", "NUMSUB", owner_channel(name))[1]
            count = pending.get(name, 0) + held.count(name)
            if (is_silent or is_cut) and count:
                yield findings.of_vanished(name, host, int(pid), count)


def _of_dead_letters(look: Look) -> Iterator[Finding]:
    dlq = keys_of(look.connection.address, look.key)[DLQ]
    if look.kind(dlq) == "stream":
        yield from findings.of_dead_letters({look.key: look.ask("XLEN", dlq)}, look.shown)


def _our_group(look: Look) -> dict[str, Any] | None:
    if look.kind(look.key) != "stream":
        return None
    return next((each for each in look.table("XINFO", "GROUPS", look.key) if each["name"].decode() == look.group), None)


SOURCE_CHECKS: Checks = {
    "what the keys of {!r} hold": _of_kinds,
    "whether keys of {!r} expire": _of_expiry,
    "whether {!r} is trimmed": _of_trimming,
    "which groups {!r} has": _of_groups,
    "whether consumers of {!r} have vanished": _of_vanished,
    "how many dead letters {!r} has": _of_dead_letters,
}
