"""What do commands, tests and unpoison's own processes need of an app, and users do not?"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from unpoison.decide.options import Settings
from unpoison.decide.policy import OnFailure
from unpoison.errors import ConfigError
from unpoison.flow.runnable import RunnableApp
from unpoison.worker.call import Registration, WorkerHooks

if TYPE_CHECKING:
    from unpoison.observing.metrics import Metrics


class AnApp(Protocol):
    """An App, as far as it is used here: it imports this module itself."""

    settings: Settings
    _consumers: dict[str, Registration]
    _on_start: list[Callable[[], Any]]
    _on_stop: list[Callable[[], Any]]
    _on_failure: list[OnFailure]
    _home: dict[str, Any]


_imports: list[None] = []
"""Not empty while one of unpoison's own processes imports the module that makes the app."""


def is_importing() -> bool:
    return bool(_imports)


@contextmanager
def importing() -> Iterator[None]:
    """While it lasts, app.run() refuses to start."""
    _imports.append(None)
    try:
        yield
    finally:
        _imports.pop()


def consumers_of(app: AnApp) -> dict[str, Registration]:
    """By source."""
    return app._consumers  # noqa: SLF001 - private to users


def worker_hooks_of(app: AnApp) -> WorkerHooks:
    return WorkerHooks(tuple(app._on_start), tuple(app._on_stop), tuple(app._on_failure))  # noqa: SLF001 - private to users


def settings_of(app: AnApp) -> Settings:
    """The settings with which it runs, the version of the user's code among them."""
    if app.settings.code_version is not None:
        return app.settings
    from unpoison.flow.code_version import installed_version  # noqa: PLC0415 - 20 ms that only consumers should pay for

    return replace(app.settings, code_version=installed_version(app._home.get("__file__")))  # noqa: SLF001 - private to users


def runnable(app: AnApp) -> RunnableApp:
    """The app with everything that running it needs. Isolated workers import it again, by name."""
    options = [registration.options for registration in consumers_of(app).values()]
    isolated = [consumer.source for consumer in options if consumer.isolation == "process"]
    reference = reference_to(app, app._home, isolated[0]) if isolated else None  # noqa: SLF001 - private to users
    return RunnableApp(settings_of(app), options, lambda: consumers_of(app), reference, lambda: worker_hooks_of(app))


def make_metrics(code_version: str | None) -> "Metrics":
    """For a run that has a port. Raises MissingExtra without the extra `metrics`."""
    from importlib.metadata import version  # noqa: PLC0415 - both are for consumers with a port

    from unpoison.observing.metrics import Metrics  # noqa: PLC0415

    return Metrics(version("unpoison"), code_version)


def reference_to(app: AnApp, home: Mapping[str, Any], source: str) -> str:
    """How worker processes find this app: "module:name", or the script's file and name."""
    name = next((name for name, value in home.items() if value is app), None)
    module = home.get("__name__", "")
    if module == "__main__":
        spec = home.get("__spec__")
        module = spec.name if spec is not None else home.get("__file__", "")
    if name is None or not module or (module.endswith(".py") and not os.path.isfile(module)):  # noqa: PTH113 - a plain question
        raise ConfigError(
            f"Consumer {source!r}: worker processes import the app by name, but this app is not a variable at the top of a "
            f"module or script. Put app = App(…) there, or use isolation='thread' (then a message that crashes takes this "
            f"process with it)."
        )
    return f"{module}:{name}"
