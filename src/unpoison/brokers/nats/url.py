"""Read a NATS URL.

nats://user:password@host:4222, or tls:// for TLS; several servers of a cluster with commas between them. What follows the
question mark goes to the client in its own terms (user_credentials, nkeys_seed, tls_hostname …), except for our own:
`group`, `ack_wait`, `replicas`, `domain`, `monitor`, and `tls_ca`, `tls_cert`, `tls_key` for files.
"""

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from unpoison.errors import ConfigError
from unpoison.port.broker_url import BrokerURL, Options, parse

PASSED_ON = ("user_credentials", "nkeys_seed", "token", "tls_hostname", "inbox_prefix")
OURS = ("group", "ack_wait", "replicas", "domain", "monitor", "tls_ca", "tls_cert", "tls_key")
GROUP = "unpoison"
ACK_WAIT = 30.0
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
    dlqs: Mapping[str, str] = {}
    """The DLQs that are not `<SUBJECT>_DLQ`, by source."""


def address(url: str) -> Address:
    parts = parse(url, FORM)
    places, options = parts.places(PORT, FORM), Options(parts, OURS, PASSED_ON)
    if parts.path.strip("/"):
        raise ConfigError(f"{parts.shown!r} has the path {parts.path!r}, and NATS has none. The form is {FORM}")
    shown = parts.at(places)
    passed: dict[str, Any] = options.passed_on | _login(parts)
    if parts.scheme == "tls" or any(f"tls_{kind}" in options for kind in ("ca", "cert", "key", "hostname")):
        passed["tls"] = _context(options, shown)
    domain = options.get("domain")
    kept = "It is how long a vanished consumer keeps its messages; left out it is 30."
    group = "cannot be part of a consumer's name in NATS. Use letters, digits, '-' and '_', as in 'billing'."
    return Address(
        tuple(parts.at([place]) for place in places),
        shown,
        passed,
        options.text("group", GROUP, is_group, group),
        options.seconds("ack_wait", ACK_WAIT, 0.5, 86_400, kept),
        options.whole("replicas", 1, 1, 5, "A cluster of three servers can keep 3."),
        f"$JS.{domain}.API" if domain else "$JS.API",
        options.get("monitor"),
        url,
        parts.dlqs,
    )


def _login(parts: BrokerURL) -> dict[str, str]:
    if parts.user is None:
        return {}
    return {"token": parts.user} if parts.password is None else {"user": parts.user, "password": parts.password}


def is_group(name: str) -> bool:
    return bool(name) and name.isprintable() and not FORBIDDEN & set(name)


def _context(options: Options, shown: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("tls_ca"))
        if (certificate := options.get("tls_cert")) is not None:
            context.load_cert_chain(certificate, options.get("tls_key"))
    except (OSError, ssl.SSLError) as error:
        what = f"The certificates named in {shown!r} cannot be used: {error}. See tls_ca, tls_cert and tls_key."
        raise ConfigError(what) from None
    return context
