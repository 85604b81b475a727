"""May this user do what a consumer has to?"""

import re
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from urllib.parse import quote as quoted

from unpoison.brokers.rabbitmq.doctor.management import Management
from unpoison.brokers.rabbitmq.topology import DLX, made_of, native_names
from unpoison.brokers.rabbitmq.url import Address
from unpoison.port.broker import Finding

NAMES = ("missing-rights",)

KINDS = ("configure", "write", "read")


def needed(source: str) -> dict[str, list[str]]:
    """Names on which a consumer of a source needs each right."""
    own = list(native_names("", source, consumed=True))
    shared = [DLX, "unpoison.delay.0", "unpoison.delay.0.1s"]
    made = [made_of(source)]
    return {"configure": own + shared + made, "write": [*own, *shared, "amq.default"], "read": own + shared}


def needed_to_use(source: str) -> dict[str, list[str]]:
    """The same with create=False, where somebody else has made everything."""
    own = list(native_names("", source, consumed=True))
    return {"configure": [], "write": [DLX, "unpoison.delay.0", "amq.default"], "read": own}


def findings_of(address: Address, management: Management, sources: Sequence[str]) -> Iterator[Finding]:
    """Where the management API is asked as an administrator, it says what the user of the URL may do."""
    user = str(address.parameters.credentials.username)
    given: Mapping[str, str] = management.get(f"permissions/{management.vhost}/{quoted(user, safe='')}") or {}
    if lacking := _lacking(given, [needed(source) for source in sources]):
        may_use = not _lacking(given, [needed_to_use(source) for source in sources])
        yield _lacks(address, lacking, sources, given, may_use=may_use)


def _lacking(given: Mapping[str, str], needs: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    found = {kind: [name for need in needs for name in need[kind] if not allows(given.get(kind, ""), name)] for kind in KINDS}
    return {kind: names for kind, names in found.items() if names}


def refused(address: Address, source: str, said: str) -> Finding:
    """Where the server itself refused a look."""
    user = str(address.parameters.credentials.username)
    return Finding(
        "missing-rights",
        f"RabbitMQ refuses {user!r} a look at {source!r}: {said}. A consumer or publisher of this user fails at the first use "
        "and stands still; nothing is lost.",
        f"Give it these rights, beside those that it has:\n{_command(address, [source], {})}",
    )


def _lacks(
    address: Address, lacking: Mapping[str, Sequence[str]], sources: Sequence[str], given: Mapping[str, str], *, may_use: bool
) -> Finding:
    user = str(address.parameters.credentials.username)
    what = "; ".join(f"{kind} on {', '.join(dict.fromkeys(names))}" for kind, names in lacking.items())
    means = (
        "That is enough for an app with create=False; another one does not start with this user."
        if may_use
        else "A consumer or publisher of this user fails at the first use and stands still; nothing is lost."
    )
    return Finding(
        "missing-rights",
        f"The user {user!r} lacks: {what}. {means}",
        f"Give it these rights beside those that it has:\n{_command(address, sources, given)}",
    )


def _command(address: Address, sources: Sequence[str], given: Mapping[str, str]) -> str:
    names = "|".join(re.escape(source) for source in sources)
    ours = f"^({names})(\\.(dlq|dlq\\.history|dlq\\.lock|suspects|starts|busy|delayed|made))?$|^{DLX}$|^unpoison\\."
    patterns = {"configure": ours, "write": f"{ours}|^amq\\.default$", "read": ours}
    both = [f"{given[kind]}|{patterns[kind]}" if given.get(kind) not in (None, "", "^$") else patterns[kind] for kind in KINDS]
    user = str(address.parameters.credentials.username)
    return f"rabbitmqctl set_permissions -p {quote(address.vhost)} {quote(user)} {' '.join(map(quote, both))}"


def allows(pattern: str, name: str) -> bool:
    """As RabbitMQ reads it: an expression that need match a part of the name only, and an empty one nothing."""
    try:
        return bool(pattern) and re.search(pattern, name) is not None
    except re.error:  # the server's expressions know a little more than ours
        return True
