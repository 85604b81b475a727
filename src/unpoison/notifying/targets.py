"""Where are notices sent, and what of that may be shown?

    https://hooks.slack.com/services/…     Slack's form, as slack+https://host/… for others that take it
    https://host/path                      JSON, to any host; http:// too
    smtp://user:password@host:587/?from=unpoison@shop.example&to=ada@shop.example,bob@shop.example
    smtps://…                              e-mail; smtp:// with STARTTLS, unless ?tls=off says otherwise

The path of a webhook is as good as its password. So nothing but scheme and host is ever shown of a target.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

from unpoison.errors import ConfigError
from unpoison.port.broker_url import ESCAPES, HIDDEN, masked, masked_text, scheme_of

FORMS = (
    "https://hooks.slack.com/services/… or slack+https://host/… (Slack's form), https://host/path (JSON), or "
    "smtp://user:password@host:587/?from=unpoison@shop.example&to=ada@shop.example (e-mail; smtps:// for TLS from the start)"
)
SLACK_HOST = "hooks.slack.com"
WORTH_HIDING = 4
"""A piece of a URL that is shorter would be found in ordinary words."""
_HTTP = {"http": 80, "https": 443}
_SLACK = "slack+"
_SMTP = {"smtp": 587, "smtps": 465}
_ADDRESS = re.compile(r"[^\s@<>,;:\"()\[\]\\]+@[^\s@<>,;:\"()\[\]\\]+")
_KEPT = "/?%:@!$&'()*+,;=-._~[]"
"""Characters of an address that stay as they are written; others are escaped."""
_MAIL_OPTIONS = ("from", "to", "tls")


class Webhook(NamedTuple):
    """An address that takes a POST. `login` is user and password, if it has them."""

    url: str
    is_slack: bool
    login: tuple[str, str] | None
    shown: str


class Mailbox(NamedTuple):
    """A server that takes mail, and who writes to whom. `encryption` is "starttls", "tls" or "off"."""

    host: str
    port: int
    encryption: str
    login: tuple[str, str] | None
    sender: str
    receivers: tuple[str, ...]
    shown: str


Target = Webhook | Mailbox


def check_targets(urls: Sequence[str], link: str | None) -> None:
    """Raises ConfigError for what cannot work."""
    targets_of(urls)
    if link is not None and scheme_of(link) not in _HTTP:
        raise ConfigError(
            f"notify_link must be the address of a page, got {masked(link)!r}. {{source}} and {{group}} in it stand for what a "
            f"notice is about: https://dashboard.example/poison?source={{source}}&group={{group}}"
        )


def targets_of(urls: Sequence[str]) -> list[Target]:
    """Each URL once. Raises ConfigError for one that cannot work; of what it says only scheme and host are shown."""
    return [_target(url, f"entry {number} of notify") for number, url in enumerate(dict.fromkeys(urls), 1)]


def shown(url: str) -> str:
    """Scheme and host, and nothing else."""
    scheme, separator, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    is_plain = (
        separator and re.fullmatch(r"[a-z+]{1,20}", scheme) and re.fullmatch(r"[\w.-]+(?::\d+)?|\[[0-9a-f:]+\](?::\d+)?", host)
    )
    return f"{scheme}://{host}/{HIDDEN}" if is_plain and "@" not in rest.partition("/")[2].partition("?")[0] else HIDDEN


def harmless(text: str, target: Target) -> str:
    """What a client or a server says, without what is secret in the target."""
    secrets = [*(target.login or ())[1:]]
    if isinstance(target, Webhook):
        parts = urlsplit(target.url)
        secrets += [
            target.url,
            f"{parts.path}?{parts.query}",
            parts.path,
            parts.query,
            *re.split("[/=&]", f"{parts.path}/{parts.query}"),
        ]
    for each in sorted({*secrets, *map(unquote, secrets)}, key=len, reverse=True):
        if len(each) >= WORTH_HIDING:
            text = text.replace(each, HIDDEN)
    return masked_text(text)


def _target(url: str, where: str) -> Target:
    if not url.isprintable() or " " in url:
        raise ConfigError(f"{where} has a space or a control character in it. Write it like {FORMS}.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(
            f"{where} ({shown(url)}) is not a URL that can be understood. {ESCAPES} The forms are {FORMS}."
        ) from None
    scheme = parts.scheme.lower()
    if scheme not in (*_HTTP, *_SMTP, *(f"{_SLACK}{each}" for each in _HTTP)):
        raise ConfigError(f"{where} ({shown(url)}) is none of the forms that notices can be sent to: {FORMS}.")
    if not parts.hostname or parts.fragment or ("@" in parts.path and scheme in _SMTP):
        what = "names no host" if not parts.hostname else "has a character in it that ends a part too early"
        raise ConfigError(f"{where} ({shown(url)}) {what}. {ESCAPES} The forms are {FORMS}.")
    if scheme in _SMTP:
        return _mailbox(url, parts, port, where)
    return _webhook(url, parts, port)


def _login(parts: SplitResult) -> tuple[str, str] | None:
    return None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))


def _webhook(url: str, parts: SplitResult, port: int | None) -> Webhook:
    scheme, host = parts.scheme.lower().removeprefix(_SLACK), parts.hostname or ""
    place = f"[{host}]" if ":" in host else host
    place = f"{place}:{port}" if port is not None else place
    path, query = (quote(part, safe=_KEPT) for part in (parts.path or "/", parts.query))
    address = urlunsplit((scheme, place, path, query, ""))
    is_slack = parts.scheme.lower().startswith(_SLACK) or host == SLACK_HOST
    return Webhook(address, is_slack, _login(parts), shown(url))


def _mailbox(url: str, parts: SplitResult, port: int | None, where: str) -> Mailbox:
    scheme, given = parts.scheme.lower(), parse_qsl(parts.query, keep_blank_values=True)
    options = dict(given)
    if parts.path not in ("", "/") or len(options) != len(given) or options.keys() - {*_MAIL_OPTIONS}:
        raise ConfigError(
            f"{where} ({shown(url)}) may have the options {', '.join(_MAIL_OPTIONS)}, each once. The form is {FORMS}."
        )
    receivers = tuple(filter(None, (each.strip() for each in options.get("to", "").split(","))))
    sender = options.get("from", "").strip()
    if not receivers or not all(map(_ADDRESS.fullmatch, (sender, *receivers))):
        raise ConfigError(
            f"{where} ({shown(url)}) needs from= and to= with plain mail addresses, several of them separated by commas: "
            f"…/?from=unpoison@shop.example&to=ada@shop.example,bob@shop.example"
        )
    encryption = "tls" if scheme == "smtps" else options.get("tls", "starttls")
    if encryption not in ("tls", "starttls", "off") or (scheme == "smtps" and "tls" in options):
        raise ConfigError(f"{where} ({shown(url)}): tls can only be 'off', with smtp://. Without it the connection is encrypted.")
    login = _login(parts)
    if login is not None and encryption == "off":
        raise ConfigError(f"{where} ({shown(url)}) would send its password unencrypted. Remove tls=off, or user and password.")
    return Mailbox(parts.hostname or "", port or _SMTP[scheme], encryption, login, sender, receivers, shown(url))
