"""Which rights does a user need in a virtual host, and which does it lack?"""

import re
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from urllib.parse import quote as quoted

from unpoison.brokers.rabbitmq.delays import LEVELS, exchange_of, rung, rungs
from unpoison.brokers.rabbitmq.management import Management
from unpoison.brokers.rabbitmq.names import DLX, made_of, native_names
from unpoison.brokers.rabbitmq.url import Address
from unpoison.port.broker import Finding

NAMES = ("missing-rights",)

KINDS = ("configure", "write", "read")

Rights = Mapping[str, Sequence[str]]
"""The names on which each right is needed."""


def to_create(sources: Sequence[str]) -> Rights:
    """For an app that creates what it needs."""
    own = [name for source in sources for name in native_names("", source, consumed=True)]
    shared = [DLX, exchange_of(0), rung(0, 1)]
    made = [made_of(source) for source in sources]
    return {"configure": own + shared + made, "write": [*own, *shared, "amq.default"], "read": own + shared}


def to_use(sources: Sequence[str]) -> Rights:
    """For an app with create=False. The delay queues are among them because RabbitMQ 4 lets nobody look at a queue without some
    right on it."""
    own = [name for source in sources for name in native_names("", source, consumed=True)]
    exchanges = [exchange_of(level) for level in range(LEVELS)]
    delays = [rung(level, digit) for level in range(LEVELS) for digit in rungs(level)]
    return {"configure": [], "write": ["amq.default", DLX, *exchanges, *delays], "read": own}


def patterns_to_use(sources: Sequence[str]) -> dict[str, str]:
    """The same as expressions, as RabbitMQ takes rights."""
    own = "|".join(re.escape(name) for name in to_use(sources)["read"])
    return {"configure": "^$", "write": f"^(amq\\.default|{DLX}|unpoison\\.delay\\..*)$", "read": f"^({own})$"}


def lacking(given: Mapping[str, str], needed: Rights) -> dict[str, list[str]]:
    """The names that these expressions do not cover, by right."""
    found = {kind: [name for name in needed[kind] if not _allows(given.get(kind, ""), name)] for kind in KINDS}
    return {kind: names for kind, names in found.items() if names}


def _allows(pattern: str, name: str) -> bool:
    """As RabbitMQ reads it: an expression needs to match a part of the name only, and an empty one matches nothing."""
    try:
        return bool(pattern) and re.search(pattern, name) is not None
    except re.error:  # the server's expressions know a little more than ours
        return True


def findings_of(address: Address, management: Management, sources: Sequence[str]) -> Iterator[Finding]:
    """Where the management API is asked as an administrator, it says what the user of the URL may do."""
    user = _user(address)
    given: Mapping[str, str] = management.get(f"permissions/{management.vhost}/{quoted(user, safe='')}") or {}
    if missing := lacking(given, to_create(sources)):
        what = "; ".join(f"{kind} on {', '.join(dict.fromkeys(names))}" for kind, names in missing.items())
        means = (
            "A consumer or publisher of this user fails at the first use and is paused; nothing is lost."
            if lacking(given, to_use(sources))
            else "That is enough for an app with create=False; another one does not start with this user."
        )
        yield Finding("missing-rights", f"The user {user!r} lacks: {what}. {means}", _fix(address, sources, given))


def refused(address: Address, source: str, said: str) -> Finding:
    """Where the server itself refused a look."""
    return Finding(
        "missing-rights",
        f"RabbitMQ refuses {_user(address)!r} a look at {source!r}: {said}. A consumer or publisher of this user fails at the "
        "first use and is paused; nothing is lost.",
        _fix(address, [source], {}),
    )


def _fix(address: Address, sources: Sequence[str], given: Mapping[str, str]) -> str:
    names = "|".join(re.escape(source) for source in sources)
    ours = f"^({names})(\\.(dlq|dlq\\.history|dlq\\.lock|suspects|starts|busy|delayed|made))?$|^{DLX}$|^unpoison\\."
    patterns = {"configure": ours, "write": f"{ours}|^amq\\.default$", "read": ours}
    both = [f"{given[kind]}|{patterns[kind]}" if given.get(kind) not in (None, "", "^$") else patterns[kind] for kind in KINDS]
    command = f"rabbitmqctl set_permissions -p {quote(address.vhost)} {quote(_user(address))} {' '.join(map(quote, both))}"
    return f"Give it these rights, beside those that it has:\n{command}"


def _user(address: Address) -> str:
    return str(address.parameters.credentials.username)
