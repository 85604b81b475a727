"""The options of an app and of a consumer, with their defaults.

Options are plain data: the consumer reads them without importing any user code.
"""

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any, Literal, get_args

from unpoison.control.options import DEFAULT_CONTROL, ControlOptions
from unpoison.errors import ConfigError, seconds
from unpoison.model.backoff import DEFAULT_BACKOFF, MAX_AGE, MAX_ATTEMPTS, Limits

Isolation = Literal["process", "thread", "inline"]
Tombstones = Literal["handle", "skip"]

LOOPBACK = "127.0.0.1"


class Default:
    """The default of an argument. It tells "not given" from the same value given on purpose; help() shows the value itself."""

    __slots__ = ("shown", "value")

    def __init__(self, value: Any, shown: str = "") -> None:
        self.value, self.shown = value, shown or repr(value)

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for a whole app. Each can also come from the environment: UNPOISON_GRACE=60."""

    url: str = field(repr=False)
    store: str | None = field(default=None, repr=False)
    """None: the database of the broker, if it is one that can be a store. Empty: no store."""
    collect: bool = False
    """Whether dead letters are moved into the store."""
    create: bool = True
    grace: float = 25.0
    prefetch: int = 256
    max_body: int | None = 16 * 1024 * 1024
    max_depth: int = 64
    code_version: str | None = None
    worker_memory: int | None = None
    recycle_messages: int | None = None
    recycle_memory: int | None = None
    start_timeout: float = 60.0
    accept: tuple[str, ...] = ()
    metrics_port: int | None = None
    metrics_host: str = LOOPBACK
    heartbeat_file: str | None = None

    def __post_init__(self) -> None:
        if self.store is not None and not isinstance(self.store, str):
            raise ConfigError(f"store must be a URL, got {self.store!r}. For no store write store=''; else leave it out.")
        _at_least("prefetch", self.prefetch, 1)
        _at_least("max_depth", self.max_depth, 1)
        if self.max_body is not None:
            _at_least("max_body", self.max_body, 0)
        for name in ("worker_memory", "recycle_messages", "recycle_memory"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        seconds(self.grace, "grace")
        seconds(self.start_timeout, "start_timeout")
        _check_outside(self.metrics_port, self.metrics_host, self.heartbeat_file)
        if not isinstance(self.accept, tuple) or not all(isinstance(each, str) for each in self.accept):
            raise ConfigError(f"accept must be a list of findings by name, got {self.accept!r}. For example ['messages-expire'].")


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What holds for the consumer of one source."""

    source: str
    limits: Limits
    timeout: float | None = 300.0
    concurrency: int = 2
    threads: int = 1
    isolation: Isolation = "process"
    key_from: str | None = None
    tombstones: Tombstones = "handle"
    control: ControlOptions = DEFAULT_CONTROL
    is_async: bool = False
    takes_delivery: bool = False
    """Whether the handler takes the Delivery: only then is `delivery.native` made."""
    workers: int | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """The source as log lines call it: with its app where another app of this process has a source of the same name."""
        return self.label or self.source

    @property
    def lanes(self) -> int:
        """How many messages one worker runs at once."""
        return self.concurrency if self.is_async else min(self.threads, self.concurrency)

    @property
    def processes(self) -> int:
        """How many worker processes serve the source: as many as were asked for, or as `concurrency` needs."""
        return -(-self.concurrency // self.lanes) if self.workers is None else self.workers


DEFAULTS: Any = SimpleNamespace(
    **{each.name: Default(each.default) for each in fields(Settings)},
    max_attempts=Default(MAX_ATTEMPTS),
    max_age=Default(MAX_AGE),
    backoff=Default(DEFAULT_BACKOFF, "Backoff.exponential(base=1, max=60)"),
)
"""The defaults in the signatures of App and of @app.consumer."""


def settings_from(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """Explicit arguments win over UNPOISON_* variables, those over the defaults.

    A Default in `given` means not given. So does None, except for `max_body`, where it means no limit.
    """
    known = {each.name: each.type for each in fields(Settings)}
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        name = variable.removeprefix("UNPOISON_").lower()
        if not variable.startswith("UNPOISON_"):
            continue
        if name not in known:
            listed = ", ".join(f"UNPOISON_{setting.upper()}" for setting in known)
            warnings.warn(f"{variable} is not a setting of unpoison and is ignored. Known are {listed}.", stacklevel=3)
        else:
            values[name] = _from_text(variable, text, known[name])
    values |= {
        name: value
        for name, value in given.items()
        if not isinstance(value, Default) and (value is not None or name == "max_body")
    }
    values |= {name: seconds(values[name], name) for name in ("grace", "start_timeout") if name in values}
    if not values.get("url"):
        raise ConfigError("App needs a broker URL. Write App('sqlite:///shop.db'), or set UNPOISON_URL.")
    if not isinstance(values["url"], str):
        raise ConfigError(f"The broker URL must be text, got {values['url']!r}. Write App('sqlite:///shop.db').")
    return Settings(**values)


def check_isolation(value: str | None, source: str, *, is_async: bool, is_shared: bool) -> Isolation:
    """The isolation asked for, or the best there is: processes where the broker can be shared between them, on Linux."""
    if value is None:
        return "process" if is_shared and sys.platform == "linux" else "thread"
    if value not in get_args(Isolation):
        raise ConfigError(
            f"Consumer {source!r}: isolation must be one of {', '.join(map(repr, get_args(Isolation)))}, got {value!r}."
        )
    if is_async and value == "inline":
        raise ConfigError(f"Consumer {source!r} is async, and isolation='inline' has no event loop. Use isolation='thread'.")
    if value == "process" and not is_shared:
        raise ConfigError(
            f"Consumer {source!r}: memory:// lives in one process, so isolation='process' cannot work. Use 'thread'."
        )
    if value == "process" and sys.platform != "linux":
        raise ConfigError(
            f"Consumer {source!r}: isolation='process' needs Linux, this is {sys.platform}. Use isolation='thread'."
        )
    return value  # type: ignore[return-value]  # just checked


def check_tombstones(value: str, source: str) -> Tombstones:
    if value not in get_args(Tombstones):
        raise ConfigError(
            f"Consumer {source!r}: tombstones must be 'handle' or 'skip', got {value!r}. With 'skip' a message whose value is "
            f"null is done without the handler."
        )
    return value  # type: ignore[return-value]  # just checked


def _from_text(variable: str, text: str, kind: Any) -> Any:
    if "bool" in str(kind):
        if text.lower() not in ("1", "0", "true", "false", "yes", "no"):
            raise ConfigError(f"{variable} must be true or false, got {text!r}. Set it to one of them, or unset it.")
        return text.lower() in ("1", "true", "yes")
    if "tuple" in str(kind):
        return tuple(filter(None, (part.strip() for part in text.split(","))))
    if "str" in str(kind):
        return text
    try:
        return float(text) if "float" in str(kind) else int(text)
    except ValueError:
        raise ConfigError(f"{variable} must be a number, got {text!r}. Set it to one, or unset it for the default.") from None


def _check_outside(port: object, host: object, file: object) -> None:
    if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65_535):
        raise ConfigError(f"metrics_port must be a port from 1 to 65535, or 0 for any that is free, got {port!r}.")
    if not isinstance(host, str) or not host:
        raise ConfigError(f"metrics_host must be an address of this machine, got {host!r}. For all of them write '0.0.0.0'.")
    if file is not None and (not isinstance(file, str) or not file):
        raise ConfigError(f"heartbeat_file must be the path of a file as text, got {file!r}. For example '/tmp/consumer.alive'.")


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of {least} or more, got {value!r}. Leave it out for the default.")
