"""What does a command work on: a URL, an app by `module:app` or `path/to/file.py:app`, or the DLQs of either?

Importing an app runs the user's code, which may fail in any way. Every failure becomes one error that says what failed, where,
and what to do.
"""

import functools
import os
import re
import shlex
import sys
import traceback as tracebacks
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from unpoison.app import App
from unpoison.app_internals import consumers_of, worker_hooks_of
from unpoison.brokers import broker_for, sources_for, url_with_dlq
from unpoison.cli.chosen_letters import DLQ, Target
from unpoison.deadletters import DLQManager
from unpoison.decide.options import settings_from
from unpoison.errors import CapabilityError, ConfigError
from unpoison.flow.runnable import RunnableApp
from unpoison.model.failure import describe
from unpoison.model.wording import one_line
from unpoison.port.broker import Capability
from unpoison.port.broker_url import masked
from unpoison.programs.importing import import_app
from unpoison.reporting.log_lines import LogStyle, settle
from unpoison.store.choice import check_collects, store_url
from unpoison.store.letters.port import LetterStore
from unpoison.workers.template_client import ImportFailed

_PLACE = re.compile(r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d+)[^\n]*(?:\n +(?P<code>[^\n]*))?', re.MULTILINE)

Function = TypeVar("Function", bound=Callable[..., Any])


def target_or_url(target: str | None, usage: str) -> str:
    """The argument, or UNPOISON_URL where it was left out. `usage` says what the command needs."""
    found = target or os.environ.get("UNPOISON_URL")
    if not found:
        raise click.UsageError(f"{usage}, or set UNPOISON_URL.")
    return found


def load(reference: str) -> App:
    """The app itself, imported into this process: for commands that only look at its URL and its sources."""
    try:
        with redirect_stdout(sys.stderr):  # what an app prints while it is imported is not the command's output
            return import_app(whole(reference))
    except (Exception, SystemExit) as error:  # code of the user
        name, text, traceback = describe(error)
        said = text if isinstance(error, ConfigError) else f"{reference!r} could not be imported: {name}: {text}"
        raise click.ClickException(_failed(reference, said, traceback)) from None


def runnable(reference: str, workers: int | None = None, style: LogStyle | None = None) -> RunnableApp:
    """The app made ready to run. Its worker processes import it; this process does only if its handlers run here."""

    @functools.cache
    def app() -> App:
        imported = load(reference)
        settle()
        return imported

    try:
        # Before it is imported the app cannot say how long that may take; the environment can.
        environment = {name: value for name, value in os.environ.items() if name == "UNPOISON_START_TIMEOUT"}
        limit = settings_from({"url": "memory://"}, environment=environment)
        return RunnableApp.from_reference(
            whole(reference),
            lambda: consumers_of(app()),
            limit.start_timeout,
            workers=workers,
            worker_hooks=lambda: worker_hooks_of(app()),
            style=style,
        )
    except ImportFailed as error:
        raise click.ClickException(_failed(reference, error.said, error.traceback)) from None


def whole(reference: str) -> str:
    """`shop` and `shop.py` mean the variable `app` in it."""
    return reference if ":" in reference else f"{reference}:app"


def _failed(reference: str, said: str, traceback: str) -> str:
    place = _place(traceback)
    if not place:  # it failed before the user's code ran; `said` says what to do
        return said
    if ": ModuleNotFoundError" in said:
        remedy = f"Install what is missing into this Python environment, {sys.prefix}, or fix the import."
    elif ": SystemExit" in said:
        remedy = "An app must not end the program while it is imported: move that under if __name__ == '__main__':"
    else:
        module = whole(reference).rpartition(":")[0]
        see = f"python {module}" if module.endswith(".py") else f"python -c 'import {module}'"
        remedy = f"Fix it there. For the whole traceback run: {see}"
    return f"{said}\n  {place}\n{remedy}"


def _place(traceback: str) -> str:
    """File, line and code: the innermost place in the user's own files."""
    places = [found for found in _PLACE.finditer(traceback) if not _is_foreign(found["file"])]
    return "{file}, line {line}: {code}".format(**places[-1].groupdict("")).removesuffix(": ") if places else ""


def _is_foreign(file: str) -> bool:
    """Whether the file is unpoison's own, an installed package's or Python's."""
    path = Path(file)
    return file.startswith("<") or "site-packages" in path.parts or any(folder in path.parents for folder in _not_the_users())


@functools.cache
def _not_the_users() -> tuple[Path, Path]:
    return Path(__file__).parents[1], Path(tracebacks.__file__).parent


# Commands that work on dead letters


class GivenTarget(NamedTuple):
    """What a command was told about the letters that it works on."""

    app: str | None
    url: str | None
    source: str | None
    store: str | None
    dlq: str | None = None
    accept: tuple[str, ...] = ()

    def opened(self) -> Target:
        """Open the DLQs. Creates nothing: a file or a source that does not exist is an error. With a store its letters too."""
        if self.app is not None and self.url is not None:
            raise click.UsageError("--app and --url both name a broker. Give one of them.")
        if self.app is not None:
            return self._of_app(load(self.app))
        url = target_or_url(self.url, "Name the app or the broker: add --app module:app or --url URL")
        store, rules = _store(url, self.store or ""), _given_rules()
        if self.dlq and not self.source:
            return self._foreign(url, store, rules)
        sources = [self.source] if self.source else None
        return _opened(self._with_dlq(url), sources, known=(), store=store, redact=rules)

    def _with_dlq(self, url: str) -> str:
        return url_with_dlq(url, self.source, self.dlq) if self.source and self.dlq else url

    def _foreign(self, url: str, store: str, redact: Sequence[str]) -> Target:
        """A DLQ by its own name, of whatever sources its letters are."""
        from unpoison.store.letters.choice import letters_at  # noqa: PLC0415 - as in `_opened`

        name = self.dlq or ""
        letters = letters_at(url, store, name, self.accept, redact=redact)
        return Target([DLQ(name, letters, DLQManager(letters, dlq=name))])

    def in_store(self) -> tuple[Target, LetterStore]:
        """The same, for a command that notes what only a store can keep."""
        chosen = self.opened()
        store = next((store for dlq in chosen.dlqs if (store := getattr(dlq.letters, "store", None)) is not None), None)
        if store is None:
            raise ConfigError(
                "What is said of letters and groups is kept in a store. Name the one that dead letters are collected into: "
                "--store URL, or an app with collect=True."
            )
        return chosen, store

    def _of_app(self, app: App) -> Target:
        settings, consumed = app.settings, consumers_of(app)
        default = (settings.store or "") if settings.collect else ""
        store = default if self.store is None else _store(settings.url, self.store)
        if self.dlq and not self.source:
            return self._foreign(settings.url, store, settings.redact)
        sources = [self.source] if self.source else list(consumed)
        if not sources:
            raise click.UsageError("The app has no consumer, so its sources are unknown. Add --source NAME.")
        known = consumed if settings.create else ()
        return _opened(self._with_dlq(settings.url), sources, known=known, store=store, redact=settings.redact)


def target_options(command: Function) -> Callable[..., Any]:
    """The options that choose the DLQs. The command gets them as one GivenTarget."""

    @functools.wraps(command)
    def with_target(
        app: str | None,
        url: str | None,
        source: str | None,
        store: str | None,
        dlq: str | None,
        accept: tuple[str, ...],
        **others: Any,
    ) -> Any:
        return command(given=GivenTarget(app, url, source, store, dlq, accept), **others)

    app = click.option("--app", metavar="MODULE:APP", help="The app, for its broker and its sources.")
    url = click.option("--url", metavar="URL", help="The broker, in place of --app.  [default: UNPOISON_URL]")
    source = click.option("--source", metavar="NAME", help="The source.  [default: all sources of the app or the broker]")
    about = "The store that dead letters are collected into, to work on them there.  [default: that of an app with collect=True]"
    store = click.option("--store", metavar="URL", help=about)
    return app(url(source(dlq_options(store(with_target)))))


def dlq_options(command: Function) -> Function:
    """The options that name a DLQ by its own name."""
    dlq = click.option(
        "--dlq", metavar="NAME", help="The DLQ by its own name, whoever made it; with --source that of the source."
    )
    about = "Open it although looking may delete letters: delivery-limit."
    return dlq(click.option("--accept", metavar="DANGER", multiple=True, help=about)(command))


def _store(url: str, store: str) -> str:
    """The URL of a store for letters; empty if none was given."""
    if not store:
        return ""
    found = store_url(url, store)
    check_collects(url, found)
    return found


def _given_rules() -> Sequence[str]:
    """The rules for redaction where there is no app to say them."""
    return [text for text in (os.environ.get("UNPOISON_REDACT"),) if text]


def _opened(url: str, sources: Sequence[str] | None, known: Any, store: str, redact: Sequence[str]) -> Target:
    """Without `sources`: all sources that the broker has been used for."""
    broker = broker_for(url)
    if Capability.SHARED not in broker.capabilities:
        raise CapabilityError(
            f"{masked(url)!r} keeps its dead letters in one process, so this one cannot see them. "
            f"Use app.dlq('orders') inside that process, or a broker that processes can share."
        )
    broker.open([], create=False)
    broker.close()
    if sources is None:
        sources = sources_for(url)
    from unpoison.store.letters.choice import letters_of  # noqa: PLC0415 - `unpoison run` needs neither this nor its modules

    # A source that the app consumes may not have been used yet; any other source that does not exist is a typing mistake.
    opened = [(source, letters_of(url, store, source, create=source in known, redact=redact)) for source in sources]
    return Target([DLQ(source, letters, DLQManager(letters, source)) for source, letters in opened])


# Commands that work on consumers


class Fleet(NamedTuple):
    """The consumers of a broker that share a store, as a command was told of them."""

    url: str
    store: str
    """Its URL; empty if there is none."""
    consumed: Sequence[str]
    """The sources of the app; none where only a URL was given."""
    named: str
    """The options that name the same for another command."""
    redact: Sequence[str] = ()
    """Rules for redaction: those of the app, or of the environment."""

    @property
    def shown(self) -> str:
        return masked(self.url)


def fleet_options(command: Function) -> Function:
    """The options from which `fleet` makes a Fleet."""
    app = click.option("--app", metavar="MODULE:APP", help="The app, for its broker, its sources and its store.")
    url = click.option("--url", metavar="URL", help="The broker, in place of --app.  [default: UNPOISON_URL]")
    store = click.option("--store", metavar="URL", help="The store.  [default: that of the app, UNPOISON_STORE, or the broker]")
    return app(url(store(command)))


def fleet(app: str | None, url: str | None, store: str | None) -> Fleet:
    if app is not None and url is not None:
        raise click.UsageError("--app and --url both name a broker. Give one of them.")
    given = (("--app", app), ("--url", url and masked(url)), ("--store", store and masked(store)))
    named = "".join(f" {option} {shlex.quote(one_line(value))}" for option, value in given if value)
    if app is not None:
        loaded = load(app)
        address, default, consumed = loaded.settings.url, loaded.settings.store, list(consumers_of(loaded))
        rules: Sequence[str] = loaded.settings.redact
    else:
        address = target_or_url(url, "Name the app or the broker: add --app module:app or --url URL")
        default, consumed, rules = os.environ.get("UNPOISON_STORE"), [], _given_rules()
    found = Fleet(address, store_url(address, default if store is None else store), consumed, named, rules)
    if Capability.SHARED not in broker_for(found.url).capabilities:
        raise CapabilityError(
            f"{found.shown!r} lives in one process, so this one sees neither its messages nor its consumers. Use a broker that "
            f"processes can share."
        )
    return found
