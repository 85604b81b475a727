"""What is wrong with this server, as far as this user may see? Nothing is written: each question is a command that only reads."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import redis

from unpoison.brokers.redis.connection import Link
from unpoison.brokers.redis.doctor import settings, sources
from unpoison.brokers.redis.doctor.looking import Look, NotAllowed
from unpoison.brokers.redis.explaining import explained
from unpoison.brokers.redis.keys import SOURCES
from unpoison.brokers.redis.url import address
from unpoison.port import findings
from unpoison.port.broker import Finding

NAMES = (*settings.NAMES, *sources.NAMES, "source-missing", "vanished-consumer", "many-dead-letters")
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
    link = Link(address(url))
    link.open(wanted[0] if wanted else SOURCES)
    try:
        with explained(link.finder.address.shown):
            return _examined(link, wanted)
    finally:
        link.close()


def known_sources(url: str) -> Sequence[str]:
    """The sources that this server has been used for."""
    link = Link(address(url))
    link.open(SOURCES)
    try:
        with explained(link.finder.address.shown):
            return sorted(name.decode() for name in link.ask(SOURCES, ("SMEMBERS", SOURCES))[0])
    finally:
        link.close()


def adopted(url: str, source: str) -> Sequence[Finding]:
    link = Link(address(url))
    link.open(source)
    try:
        with explained(link.finder.address.shown):
            return _every({"whether its keys expire": partial(sources.of_expiry, Look(link, source))})
    finally:
        link.close()


def _examined(link: Link, wanted: Sequence[str]) -> list[Finding]:
    known: list[str] = []
    found = _every({"which sources there are": partial(sources.of_names, Look(link, SOURCES), wanted, known)})
    names = list(wanted or known)
    places = {link.finder.place(name): name for name in (names or [SOURCES])}
    for key in places.values():  # one for each node of a cluster that has something of ours
        look = Look(link, key)
        found += [each for each in _every(settings.checks(look)) if each.name not in [known.name for known in found]]
    for name in names:
        found += _every(sources.checks(Look(link, name)))
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
