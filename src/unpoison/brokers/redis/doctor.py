"""What is wrong with this server, as far as this user may see? Nothing is written: each question is a command that only reads."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import redis

from unpoison.brokers.redis import server_checks
from unpoison.brokers.redis.connection import Connection
from unpoison.brokers.redis.errors import explained
from unpoison.brokers.redis.names import DLQ, HELD, OWNERS, SOURCES, dlq_of, keys_of, owner_channel
from unpoison.brokers.redis.server_checks import Look, NotAllowed
from unpoison.brokers.redis.topology import LIST_COSTS
from unpoison.brokers.redis.url import address
from unpoison.port import findings
from unpoison.port.broker import Finding

# What is wrong with the keys of a source, or with the messages in them?


SOURCE_FINDINGS = ("stream-trimmed", "key-expires", "wrong-type", "other-groups", "list-source")

GROWN = 10_000
"""Finished entries that other groups keep in a stream, from which on it is worth a word."""

LOOKED_AT = 1_000
"""So many entries that are held are looked at, the oldest."""


def of_names(look: Look, wanted: Sequence[str], known: list[str]) -> Iterator[Finding]:
    """About sources that nobody has used. Those that somebody has are noted in `known`."""
    known += sorted(name.decode() for name in look.ask("SMEMBERS", SOURCES))
    there = {*known, *(name for name in wanted if Look(look.link, name).kind(name) != "none")}
    yield from findings.of_sources(wanted, there, look.shown)


def _source_checks(look: Look) -> dict[str, Callable[[], Iterator[Finding]]]:
    source = look.key
    return {
        f"what the keys of {source!r} hold": partial(_of_kinds, look),
        f"whether keys of {source!r} expire": partial(of_expiry, look),
        f"whether {source!r} is trimmed": partial(_of_trimming, look),
        f"which groups {source!r} has": partial(_of_groups, look),
        f"whether consumers of {source!r} have vanished": partial(_of_vanished, look),
        f"how many dead letters {source!r} has": partial(_of_dead_letters, look),
    }


def _of_kinds(look: Look) -> Iterator[Finding]:
    source, is_list = look.key, look.key in look.link.finder.address.lists
    kind, dlq_kind = look.kind(source), look.kind(dlq_of(source))
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
            f"{dlq_of(source)!r} is a {dlq_kind}, and unpoison keeps dead letters in a stream of this name: no app starts.",
            f"What is in it is somebody's. Move it to another name:\nRENAME {dlq_of(source)} {dlq_of(source)}:old",
            stops=True,
        )
    if is_list:
        yield Finding(
            "list-source",
            f"{source!r} is a list. {LIST_COSTS}",
            f"Have its producers write to a stream, and leave list={source} out of the URL:\nXADD {source} * body <message>",
        )


def of_expiry(look: Look) -> Iterator[Finding]:
    expiring = [key for key in keys_of(look.key, look.group) if look.ask("TTL", key) >= 0]
    if expiring:
        yield Finding(
            "key-expires",
            f"Somebody gave a time to live to {', '.join(map(repr, expiring))}: when it is over, all that is in there is gone.",
            "Have them stay:\n" + "\n".join(f"PERSIST {key}" for key in expiring),
            loses=True,
        )


def _of_trimming(look: Look) -> Iterator[Finding]:
    """MAXLEN stands in the commands of whoever writes; what can be seen is what it has done."""
    if _our_group(look) is None:
        return
    source = look.key
    pending = [entry[0] for entry in look.ask("XPENDING", source, look.group, "-", "+", LOOKED_AT)]
    held = sum(1 for no in pending if not look.ask("XRANGE", source, no, no))
    unread = _trimmed_unread(look)
    if held or unread:
        gone = [f"{held:,} that consumers hold"] * bool(held) + [f"{unread:,} that nobody had read"] * bool(unread)
        yield Finding(
            "stream-trimmed",
            f"Messages were cut off from the stream {source!r} before they were finished: {' and '.join(gone)}. Something "
            f"writes to it with MAXLEN or MINID, or runs XTRIM. Those unread are lost. unpoison removes finished ones by "
            f"itself: nothing else needs to.",
            f"Take MAXLEN and MINID out of the XADD of every producer of {source}, and stop what runs XTRIM on it.",
            loses=True,
        )


def _trimmed_unread(look: Look) -> int:
    """How many more entries the group has to read, as the server counts, than there are at all: trimming does not tell it.

    Both are asked in one moment: in between a consumer might finish some.
    """
    *_, answers = look.link.try_all(look.key, ("MULTI",), ("XINFO", "GROUPS", look.key), ("XLEN", look.key), ("EXEC",))
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
            "Destroy groups that nobody uses (XGROUP DESTROY), or cut off, from time to time, what all of them have finished; "
            f"now that is:\nXTRIM {look.key} MINID {safe}",
        )


def _finished_by_all(look: Look, groups: list[dict[str, Any]]) -> str:
    """The first entry that some group has still to read or to finish."""
    bounds = []
    for group in groups:
        last = _number(group["last-delivered-id"])
        oldest = look.ask("XPENDING", look.key, group["name"], "-", "+", 1)
        bounds.append(_number(oldest[0][0]) if oldest else (last[0], last[1] + 1))
    return "{}-{}".format(*min(bounds))


def _of_vanished(look: Look) -> Iterator[Finding]:
    keys = keys_of(look.key, look.group)
    seconds, micros = map(int, look.ask("TIME"))
    held = [holder.decode().removeprefix("!") for holder in look.ask("HVALS", keys[HELD])]
    consumers = look.table("XINFO", "CONSUMERS", look.key, look.group) if _our_group(look) else []
    pending = {each["name"].decode(): each["pending"] for each in consumers}
    for owners in look.table("HGETALL", keys[OWNERS]):
        for name, text in owners.items():
            till, run, is_subscribed, host, pid, *_ = text.decode().split(" ")
            is_silent = float(till) < seconds * 1000 + micros / 1000
            counts = is_subscribed == "1" and run == look.link.node(look.key).run
            is_cut = counts and not look.ask("PUBSUB", "NUMSUB", owner_channel(name))[1]
            count = pending.get(name, 0) + held.count(name)
            if (is_silent or is_cut) and count:
                yield findings.of_vanished(name, host, int(pid), count)


def _of_dead_letters(look: Look) -> Iterator[Finding]:
    dlq = keys_of(look.key, look.group)[DLQ]
    if look.kind(dlq) == "stream":
        yield from findings.of_dead_letters({look.key: look.ask("XLEN", dlq)}, look.shown)


def _our_group(look: Look) -> dict[str, Any] | None:
    if look.kind(look.key) != "stream":
        return None
    return next((each for each in look.table("XINFO", "GROUPS", look.key) if each["name"].decode() == look.group), None)


def _number(no: bytes) -> tuple[int, int]:
    first, _, second = no.partition(b"-")
    return int(first), int(second)


# (the part that gave this module its question)


NAMES = (*server_checks.SERVER_FINDINGS, *SOURCE_FINDINGS, "source-missing", "vanished-consumer", "many-dead-letters")
DEEP = ()

Check = Callable[[], Iterator[Finding]]


def examine(  # every broker is asked the same
    url: str,
    wanted: Sequence[str],
    longest: float | None,  # noqa: ARG001
    *,
    deep: bool = False,  # noqa: ARG001
) -> Sequence[Finding]:
    """All that is found on this server. Nothing here takes long, so `deep` adds nothing."""
    link = Connection(address(url))
    link.open(wanted[0] if wanted else SOURCES)
    try:
        with explained(link.finder.address.shown):
            return _examined(link, wanted)
    finally:
        link.close()


def known_sources(url: str) -> Sequence[str]:
    """The sources that this server has been used for."""
    link = Connection(address(url))
    link.open(SOURCES)
    try:
        with explained(link.finder.address.shown):
            return sorted(name.decode() for name in link.ask(SOURCES, ("SMEMBERS", SOURCES))[0])
    finally:
        link.close()


def adopted(url: str, source: str) -> Sequence[Finding]:
    link = Connection(address(url))
    link.open(source)
    try:
        with explained(link.finder.address.shown):
            return _every({"whether its keys expire": partial(of_expiry, Look(link, source))})
    finally:
        link.close()


def _examined(link: Connection, wanted: Sequence[str]) -> list[Finding]:
    known: list[str] = []
    found = _every({"which sources there are": partial(of_names, Look(link, SOURCES), wanted, known)})
    names = list(wanted or known)
    places = {link.finder.place(name): name for name in (names or [SOURCES])}
    for key in places.values():  # one for each node of a cluster that has something of ours
        look = Look(link, key)
        found += [each for each in _every(server_checks.checks(look)) if each.name not in [known.name for known in found]]
    for name in names:
        found += _every(_source_checks(Look(link, name)))
    return found


def _every(checks: dict[str, Check]) -> list[Finding]:
    """Each check by itself: one that this user may not make does not keep the others from being made."""
    found: list[Finding] = []
    for what, check in checks.items():
        try:
            found += check()
        except NotAllowed as error:
            fix = f"Ask as a user that may, or allow it:\nACL SETUSER {error.user} +{error.command}"
            found.append(findings.cannot_look(what, f"The server said: {error}.", fix))
        except redis.ResponseError as error:
            found.append(findings.cannot_look(what, f"The server said: {error}.", "See what the key holds, with redis-cli."))
    return found
