"""What does a broker's URL say, and what of it may be shown?

    scheme://user:password@host:port,host:port/path?name=value&name=value

One option means the same for all of them: `dlq=orders:orders.DLT` names the DLQ of a source. So whoever knows the URL knows where
dead letters are; `@app.consumer("orders", dlq="orders.DLT")` and `--dlq` write it there.

Every adapter reads its URL through `parse`, and everything that is shown goes through this module. A character that would end a
part too early (an unescaped / in a password) is refused here, since each client would understand something else by it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from unpoison.errors import ConfigError

HIDDEN = "***"
ESCAPES = "In a user name or password write @ as %40, / as %2F, ? as %3F, # as %23 and : as %3A."

_DLQ = "dlq"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]*)(?::([^\[\]]*))?")
_PARTS_OF_QUERY = re.compile(r"\?(?=[\w.-]+=)")
_NAMES = r"[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|seed|key\.pem|oauthbearer\.config|scram_\w+_key)[\w.-]*"
_HIDDEN_NAME = re.compile(_NAMES, re.IGNORECASE)
_NAMES_A_USER = re.compile(r"user|principal|client\.id", re.IGNORECASE)
_IN_TEXT = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_HIDDEN_IN_TEXT = re.compile(rf"""(?<![\w?&.-])({_NAMES}['"]?\s*(?:=\s*|:\s*(?=['"])))({_QUOTED}|[^\s,;&)'"]+)""", re.IGNORECASE)
_EXAMPLES = ("://user:password@", "://name:password@")
"""How our own messages say what a URL looks like."""

_SECRET_PATH = re.compile(r"slack\+https?://|https?://(?:[^/@]*@)?hooks\.slack\.com(?::\d+)?/", re.IGNORECASE)
"""Addresses of which whoever knows the path may write there."""

_TOKENS = ("nats", "tls")
"""Schemes in which a user without a password is a token."""

_FILES = ("sqlite",)
"""Schemes whose path is a file: there an @ is part of its name."""

_WORTH_HIDING = 3
"""A secret that is shorter would be found in ordinary words, and hiding it there would tell what it is."""


class BrokerURL(NamedTuple):
    """A URL in its parts. User and password are decoded, everything else is as it was written."""

    text: str
    scheme: str
    user: str | None
    password: str | None
    hosts: str
    path: str
    query: str
    """Without the names of DLQs."""
    dlqs: Mapping[str, str] = {}
    """Names of DLQs that are not the usual ones, by their sources."""

    @property
    def login(self) -> str:
        """User and password as they were written, with the @ behind them; empty if there are none."""
        authority = self.text.partition("://")[2].partition("/")[0].partition("?")[0]
        return authority[: authority.rfind("@") + 1]

    @property
    def shown(self) -> str:
        return masked(self.text)

    def at(self, places: Sequence[tuple[str, int]]) -> str:
        """The URL without its login and its options."""
        return f"{self.scheme}://{','.join(f'[{host}]:{port}' if ':' in host else f'{host}:{port}' for host, port in places)}"

    def options(self) -> dict[str, str]:
        return dict(parse_qsl(self.query, keep_blank_values=True))

    def places(self, port: int, form: str, otherwise: str = "") -> list[tuple[str, int]]:
        """The hosts with their ports; without brackets around an IPv6 address. `otherwise` is meant where no host is named."""
        return [_place(text, self, port, form, otherwise) for text in self.hosts.split(",")]


class Options:
    """The options of a URL that are ours, each read once and checked. Raises ConfigError for one that does not exist."""

    def __init__(self, parts: BrokerURL, known: Sequence[str], passed_on: Sequence[str] = ()) -> None:
        self._given = parts.options()
        if unknown := sorted(self._given.keys() - {*known, *passed_on}):
            raise ConfigError(
                f"{parts.shown!r} has the option {unknown[0]!r}, which does not exist. There are: "
                f"{', '.join((*known, *passed_on))}."
            )
        self.passed_on = {name: value for name, value in self._given.items() if name in passed_on}

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def get(self, name: str) -> str | None:
        return self._given.get(name)

    def text(self, name: str, default: str, fits: Callable[[str], bool], rule: str) -> str:
        """A name or the like. `rule` says what it must be."""
        text = self._given.get(name, default)
        if name in self._given and not fits(text):
            raise ConfigError(f"{name}={text!r} in the URL {rule}")
        return text

    def whole(self, name: str, default: int, least: int, most: int, meaning: str) -> int:
        text = self._given.get(name, str(default))
        if name in self._given and not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise self._wrong(name, f"a whole number from {least} to {most:,}", meaning)
        return int(text)

    def seconds(self, name: str, default: float, least: float, most: float, meaning: str) -> float:
        try:
            value = float(self._given.get(name, default))
        except ValueError:
            value = float("nan")
        if name in self._given and not least <= value <= most:
            raise self._wrong(name, f"seconds from {least:g} to {most:,.0f}", meaning)
        return value

    def _wrong(self, name: str, wanted: str, meaning: str) -> ConfigError:
        return ConfigError(f"{name} in the URL must be {wanted}, got {self._given[name]!r}. {meaning}")


def scheme_of(url: str) -> str:
    """The scheme in lower case; empty if the text begins with none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def parse(url: str, form: str) -> BrokerURL:
    """The parts of a URL. `form` shows what it should look like, for the ConfigError about one that cannot be understood."""
    found = _URL.fullmatch(url)
    if found is None:
        raise ConfigError(f"{masked(url)!r} is not a URL that unpoison understands. Write it like {form}")
    if not url.isprintable():
        raise ConfigError(f"{masked(url)!r} has a line end or another control character in it. Remove it; the form is {form}")
    scheme, authority, path, query, fragment = found.groups(default="")
    if fragment:
        raise ConfigError(
            f"{masked(url)!r} has a '#' in it, and nothing behind that would be used. Remove it, or write it as %23. The form is "
            f"{form}"
        )
    login, at, hosts = authority.rpartition("@")
    cut_short = "@" in path and scheme.lower() not in _FILES
    if "@" in login or cut_short or any("@" in part and not _may_hold_at(part) for part in query.split("&")):
        raise ConfigError(f"{masked(url)!r} can be read in several ways: it has an unescaped character in it. {ESCAPES}")
    user, colon, password = login.partition(":")
    decoded = (unquote(user) if at else None, unquote(password) if colon else None)
    plain, dlqs = _split_dlqs(url, query)
    return BrokerURL(url, scheme.lower(), *decoded, hosts, path, plain, dlqs)


def dlqs_of(url: str) -> Mapping[str, str]:
    """The names of DLQs that the URL says, by their sources."""
    found = _URL.fullmatch(url)
    return {} if found is None else _split_dlqs(url, found[4] or "")[1]


def with_dlq(url: str, source: str, dlq: str) -> str:
    """The URL that says of one source how its DLQ is called."""
    named = dlqs_of(url)
    if named.get(source, dlq) != dlq:
        raise ConfigError(f"Source {source!r} has two DLQs: {named[source]!r} in the URL, and {dlq!r}. Name one of them.")
    if source in named:
        return url
    return f"{url}{'&' if '?' in url else '?'}{_DLQ}={quote(source, safe='')}:{quote(dlq, safe='')}"


def without_dlqs(url: str) -> str:
    """The URL as it is for apps that name other DLQs."""
    found = _URL.fullmatch(url)
    if found is None or not (query := found[4] or ""):
        return url
    plain, _ = _split_dlqs(url, query)
    return url.replace(f"?{query}", f"?{plain}" if plain else "", 1)


def _split_dlqs(url: str, query: str) -> tuple[str, Mapping[str, str]]:
    """The options without the names of DLQs, and these."""
    if _DLQ not in query:
        return query, {}
    parts, found = query.split("&"), dict[str, str]()
    for part in parts:
        name, _, value = part.partition("=")
        if name == _DLQ:
            source, _, dlq = (unquote(each) for each in value.partition(":"))
            if not source or not dlq or found.setdefault(source, dlq) != dlq:
                raise ConfigError(f"{masked(url)!r}: {part!r} does not say which DLQ a source has. Write ?dlq=orders:orders.DLT")
    return "&".join(part for part in parts if part.partition("=")[0] != _DLQ), found


def check_port(text: str, shown: str, form: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65_535:
        raise ConfigError(f"{shown!r} has the port {text!r}, and a port is a number from 1 to 65535. The form is {form}")
    return int(text)


def _place(text: str, url: BrokerURL, port: int, form: str, otherwise: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    host = unquote(found[1]).strip("[]") or otherwise if found else ""
    if found is None or not host:
        why = "an IPv6 address stands in brackets, as in [::1]:6379" if "[" in text or "]" in text else "a host is missing"
        raise ConfigError(f"{url.shown!r} does not say which server is meant: {why}. The form is {form}")
    given: str = found[2] or ""
    if not given:
        return host, port
    if url.user is None and not given.isdigit():
        raise ConfigError(
            f"{url.shown!r} has no number where its port should be. What stands there is not shown: without user:password@ "
            f"before the host it may be a password. The form is {form}"
        )
    return host, check_port(given, url.shown, form)


def masked(url: str) -> str:
    """The URL without its passwords, tokens and keys, for logs and errors. It need not be a URL that anybody understands."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _HIDDEN_IN_TEXT.sub(rf"\1{HIDDEN}", _without_login(url) if "@" in url else url)
    if _SECRET_PATH.match(url):
        return f"{scheme}://{_without_login(rest.partition('/')[0])}/{HIDDEN}"
    head, query = _split(rest)
    if any("@" in part and not _may_hold_at(part) for part in query):
        head, query = rest, []  # the question mark stands in a password
    return f"{scheme}://{_head(scheme.lower(), head)}{'?' if query else ''}{'&'.join(map(_part, query))}"


def masked_text(text: str) -> str:
    """Any text without the passwords of URLs in it, and without what stands behind words such as password=."""
    found = _IN_TEXT.sub(lambda each: each[0] if any(form in each[0] for form in _EXAMPLES) else masked(each[0]), text)
    return _HIDDEN_IN_TEXT.sub(lambda each: each[0] if each[2] == HIDDEN else each[1] + HIDDEN, found)


def without_secrets(text: str, url: str) -> str:
    """What a client says about this URL, without the secrets in it, however the client cut or decoded them."""
    text = text.replace(url, masked(url))
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return masked_text(text)


def _split(rest: str) -> tuple[str, list[str]]:
    """What stands before the options, and the options."""
    found = _PARTS_OF_QUERY.search(rest)
    return (rest, []) if found is None else (rest[: found.start()], rest[found.end() :].split("&"))


def _may_hold_at(part: str) -> bool:
    """Whether an @ in this option is in its right place: in a second URL, a user's name, or something that is hidden anyway."""
    name, equals, value = part.partition("=")
    return bool(equals) and ("://" in value or bool(_HIDDEN_NAME.fullmatch(name)) or bool(_NAMES_A_USER.search(name)))


def _head(scheme: str, head: str) -> str:
    if scheme in _FILES and head.startswith("/"):
        return head
    if "@" in head:
        return _without_login(head, is_token=scheme in _TOKENS)
    authority, slash, path = head.partition("/")
    hosts = [_without_odd_port(host) for host in authority.split(",")]
    return ",".join(hosts) + slash + path


def _without_login(text: str, *, is_token: bool = False) -> str:
    login, _, rest = text.rpartition("@")
    user, colon, _ = login.partition(":")
    if colon and not set("/?#@") & set(user):
        return f"{user}:{HIDDEN}@{rest}"
    return f"{HIDDEN}@{rest}" if is_token or colon or set("/?#@") & set(login) else text


def _without_odd_port(host: str) -> str:
    """What stands where a port should may be a password, if the host was forgotten."""
    name, colon, port = host.rpartition(":")
    return f"{name}:{HIDDEN}" if colon and "]" not in port and not port.isdigit() else host


def _part(part: str) -> str:
    name, equals, value = part.partition("=")
    if not equals:
        return HIDDEN
    if _HIDDEN_NAME.fullmatch(name):
        return f"{name}={HIDDEN}"
    if "://" in value:
        return f"{name}={masked(value)}"
    plain = unquote(value)
    if "://" in plain:
        hidden = masked(plain)
        return part if hidden == plain else f"{name}={hidden}"
    return part


def _secrets(url: str) -> set[str]:
    """Everything in the URL that must not be seen, as it was written and decoded, whole and in pieces."""
    head, query = _split(url.partition("://")[2])
    login = head.rpartition("@")[0]
    user, colon, password = login.partition(":")
    found = [password if colon else user if scheme_of(url) in _TOKENS else ""]
    found += [value for name, _, value in (part.partition("=") for part in query) if _HIDDEN_NAME.fullmatch(name)]
    whole = {*found, *map(unquote, found)}
    pieces = {piece for each in whole for piece in re.split(r"[/?#@:]", each)}
    return {each for each in whole | pieces if len(each) >= _WORTH_HIDING}
