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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from unpoison.app import App
from unpoison.app_internals import consumers_of, worker_hooks_of
from unpoison.brokers import broker_for, sources_for
from unpoison.deadletters import DLQManager, Selection
from unpoison.decide.options import settings_from
from unpoison.errors import CapabilityError, ConfigError, LetterNotFound
from unpoison.filters.filter import Filter
from unpoison.flow.runnable import RunnableApp
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.failure import describe
from unpoison.model.verdict import STATES
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import Capability, DeadLetters, one_look
from unpoison.port.broker_url import masked
from unpoison.programs.importing import import_app
from unpoison.reporting.log_lines import LogStyle, settle
from unpoison.store.choice import check_collects, store_url
from unpoison.store.letters.port import LetterStore
from unpoison.workers.template_client import ImportFailed

_PLACE = re.compile(r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d+)[^\n]*(?:\n +(?P<code>[^\n]*))?', re.MULTILINE)

NO_SOURCES = "unpoison has not been used with any source there."

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


class DLQ(NamedTuple):
    """The dead letters of one source, and its manager."""

    source: str
    letters: DeadLetters
    manager: DLQManager

    def counts(self) -> dict[str, int]:
        """How many letters are in each state."""
        with one_look(self.letters):
            return {state: self.letters.count(state) for state in STATES}


class Target(NamedTuple):
    """The DLQs that a command works on."""

    dlqs: Sequence[DLQ]

    @property
    def names(self) -> str:
        return ", ".join(repr(dlq.source) for dlq in self.dlqs)

    def one(self) -> DLQ:
        """The only DLQ. Commands that change a whole DLQ need --source where there are several."""
        if len(self.dlqs) == 1:
            return self.dlqs[0]
        names = ", ".join(one_line(dlq.source) for dlq in self.dlqs)
        raise click.UsageError(f"Add --source NAME. Sources here: {names or 'none'}")

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Inside, each DLQ is read at most once; a bar shows progress on a terminal."""
        from unpoison.cli.screen import progress  # noqa: PLC0415 - `unpoison run` draws nothing and need not wait for what does

        with progress("Reading") as advance, ExitStack() as open_looks:
            for dlq in self.dlqs:
                open_looks.enter_context(one_look(dlq.letters, advance))
            yield

    def find(self, letter_id: str) -> tuple[DLQ, DeadLetter]:
        """The letter with this id, in any of the DLQs."""
        for dlq in self.dlqs:
            try:
                return dlq, dlq.manager.get(letter_id)
            except LetterNotFound as error:
                if error.others or len(self.dlqs) == 1:
                    raise
        if not self.dlqs:
            raise click.ClickException(f"Dead letter {letter_id!r} is not here: {NO_SOURCES}")
        see = "unpoison dlq ls --state all, with --app or --url"
        raise click.ClickException(f"Dead letter {letter_id!r} is in none of {self.names}. To see what is there: {see}")

    def find_all(self, letter_ids: Sequence[str]) -> list[tuple[DLQ, list[DeadLetter]]]:
        """All of them by DLQ. All are found before any is changed, so that a mistyped id changes nothing."""
        found: dict[str, tuple[DLQ, list[DeadLetter]]] = {}
        for dlq, letter in [self.find(letter_id) for letter_id in dict.fromkeys(letter_ids)]:
            found.setdefault(dlq.source, (dlq, []))[1].append(letter)
        return list(found.values())

    def find_waiting(self, letter_ids: Sequence[str]) -> list[tuple[DLQ, list[str]]]:
        """As `find_all`; one that does not wait is an error."""
        found = self.find_all(letter_ids)
        for dlq, letter in ((dlq, letter) for dlq, letters in found for letter in letters):
            if letter.state != "dead":
                raise LetterNotFound(letter.id, dlq.source, letter.state)
        return [(dlq, [letter.id for letter in letters]) for dlq, letters in found]


def said_gone(gone: Sequence[str]) -> list[str]:
    """A sentence about letters that disappeared between finding and changing them, if there are any."""
    were = "1 was" if len(gone) == 1 else f"{len(gone):,} were"
    return [f"{were} replayed, discarded or purged by someone else in the meantime."] if gone else []


class GivenTarget(NamedTuple):
    """What a command was told about the letters that it works on."""

    app: str | None
    url: str | None
    source: str | None
    store: str | None

    def opened(self) -> Target:
        """Open the DLQs. Creates nothing: a file or a source that does not exist is an error. With a store its letters too."""
        if self.app is not None and self.url is not None:
            raise click.UsageError("--app and --url both name a broker. Give one of them.")
        if self.app is not None:
            return self._of_app(load(self.app))
        url = target_or_url(self.url, "Name the app or the broker: add --app module:app or --url URL")
        return _opened(
            url, [self.source] if self.source else None, known=(), store=_store(url, self.store or ""), redact=_given_rules()
        )

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
        sources = [self.source] if self.source else list(consumed)
        if not sources:
            raise click.UsageError("The app has no consumer, so its sources are unknown. Add --source NAME.")
        default = (settings.store or "") if settings.collect else ""
        store = default if self.store is None else _store(settings.url, self.store)
        return _opened(settings.url, sources, known=consumed if settings.create else (), store=store, redact=settings.redact)


def target_options(command: Function) -> Callable[..., Any]:
    """The options that choose the DLQs. The command gets them as one GivenTarget."""

    @functools.wraps(command)
    def with_target(app: str | None, url: str | None, source: str | None, store: str | None, **others: Any) -> Any:
        return command(given=GivenTarget(app, url, source, store), **others)

    app = click.option("--app", metavar="MODULE:APP", help="The app, for its broker and its sources.")
    url = click.option("--url", metavar="URL", help="The broker, in place of --app.  [default: UNPOISON_URL]")
    source = click.option("--source", metavar="NAME", help="The source.  [default: all sources of the app or the broker]")
    about = "The store that dead letters are collected into, to work on them there.  [default: that of an app with collect=True]"
    store = click.option("--store", metavar="URL", help=about)
    return app(url(source(store(with_target))))


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


FILTER_LIMIT = 300
"""Characters of a filter that a question repeats."""


class Meant(NamedTuple):
    """The letters of one DLQ that a filter means, and how many of it wait."""

    dlq: DLQ
    selection: Selection
    waiting: int

    @property
    def ids(self) -> Sequence[str]:
        return self.selection.by_state.get("dead", ())


class Choice(NamedTuple):
    """What a filter means in all DLQs of a command."""

    where: Filter
    each: Sequence[Meant]

    @property
    def ids(self) -> list[str]:
        return [id_ for meant in self.each for id_ in meant.ids]

    def __str__(self) -> str:
        """As in: 312 of 40,000 dead letters of 'orders' that match error:timeout."""
        of = counted(sum(meant.waiting for meant in self.each), "dead letter")
        names = ", ".join(repr(meant.dlq.source) for meant in self.each)
        return f"{len(self.ids):,} of {of} of {names} that match {one_line(str(self.where), FILTER_LIMIT)}"


@contextmanager
def chosen_by(where: Filter, target: Target, state: str | None = "dead") -> Iterator[tuple[Choice, ExitStack]]:
    """Choose the letters by one reading of each DLQ. Nobody else works on one that can only be read as a whole until this ends or
    the stack is closed: close it before a question to a person, who may take an hour to answer."""
    from unpoison.cli.screen import progress  # noqa: PLC0415 - as in `one_look`

    with ExitStack() as look:
        with progress("Reading") as advance:
            each: list[Meant] = []
            for dlq in target.dlqs:
                look.enter_context(one_look(dlq.letters, advance))
                waiting = dlq.manager.count()
                each.append(Meant(dlq, dlq.manager.select(where, state, advance), waiting))
        yield Choice(where, each), look


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
