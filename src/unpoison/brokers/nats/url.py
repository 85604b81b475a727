"""What does a NATS URL say?

nats://user:password@host:4222, or tls:// for TLS; several servers of a cluster with commas between them. What follows the
question mark goes to the client in its own terms (user_credentials, nkeys_seed, tls_hostname …), except for our own:
`group`, `ack_wait`, `replicas`, `domain`, `monitor`, and `tls_ca`, `tls_cert`, `tls_key` for files.
"""

import ssl
from typing import Any, NamedTuple

from unpoison.errors import ConfigError
from unpoison.port.broker_url import BrokerURL, parse

PASSED_ON = ("user_credentials", "nkeys_seed", "token", "tls_hostname", "inbox_prefix")
OURS = ("group", "ack_wait", "replicas", "domain", "monitor", "tls_ca", "tls_cert", "tls_key")
GROUP = "unpoison"
ACK_WAIT = 30.0
SHORTEST_ACK_WAIT = 0.5
PORT = 4222
FORM = f"nats://user:password@host:{PORT}, with commas between several hosts"
FORBIDDEN = frozenset(" \t\r\n.*>/\\")
"""What the name of a stream or of a consumer cannot contain."""


class Address(NamedTuple):
    """Where the servers are, how to log in, and how we work there. `shown` has no password in it."""

    servers: tuple[str, ...]
    shown: str
    options: dict[str, Any]
    group: str
    ack_wait: float
    replicas: int
    api: str
    monitor: str | None
    url: str


def address(url: str) -> Address:
    parts = parse(url, FORM)
    places, options = parts.places(PORT, FORM), parts.options()
    shown = parts.at(places)
    unknown = sorted(options.keys() - {*PASSED_ON, *OURS})
    if unknown:
        raise ConfigError(f"{shown!r} has the option {unknown[0]!r}, which is none. There are: {', '.join((*OURS, *PASSED_ON))}")
    if parts.path.strip("/"):
        raise ConfigError(f"{parts.shown!r} has the path {parts.path!r}, and NATS has none. The form is {FORM}")
    servers = tuple(parts.at([place]) for place in places)
    passed: dict[str, Any] = {name: value for name, value in options.items() if name in PASSED_ON}
    passed |= _login(parts)
    if parts.scheme == "tls" or any(name.startswith("tls_") for name in options):
        passed["tls"] = _context(options, shown)
    domain = options.get("domain")
    return Address(
        servers,
        shown,
        passed,
        _group(options.get("group", GROUP)),
        _ack_wait(options.get("ack_wait")),
        _replicas(options.get("replicas", "1")),
        f"$JS.{domain}.API" if domain else "$JS.API",
        options.get("monitor"),
        url,
    )


def _login(parts: BrokerURL) -> dict[str, str]:
    if parts.user is None:
        return {}
    return {"token": parts.user} if parts.password is None else {"user": parts.user, "password": parts.password}


def is_group(name: str) -> bool:
    return bool(name) and name.isprintable() and not FORBIDDEN & set(name)


def _group(name: str) -> str:
    if not is_group(name):
        raise ConfigError(
            f"group={name!r} in the URL cannot be part of a consumer's name in NATS. "
            f"Use letters, digits, '-' and '_', as in 'billing'."
        )
    return name


def _ack_wait(text: str | None) -> float:
    if text is None:
        return ACK_WAIT
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not SHORTEST_ACK_WAIT <= value <= 86_400:
        raise ConfigError(
            f"ack_wait in the URL must be seconds between {SHORTEST_ACK_WAIT:g} and 86,400, got {text!r}. "
            f"It is how long a vanished consumer keeps its messages; left out it is {ACK_WAIT:g}."
        )
    return value


def _replicas(text: str) -> int:
    if text not in ("1", "2", "3", "4", "5"):
        raise ConfigError(f"replicas in the URL must be 1 to 5, got {text!r}. A cluster of three servers can keep 3.")
    return int(text)


def _context(options: dict[str, str], shown: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("tls_ca"))
        if "tls_cert" in options:
            context.load_cert_chain(options["tls_cert"], options.get("tls_key"))
    except (OSError, ssl.SSLError) as error:
        what = f"The certificates named in {shown!r} cannot be used: {error}. See tls_ca, tls_cert and tls_key."
        raise ConfigError(what) from None
    return context
