"""Which DLQs does a command work on: that of one source, or of all sources of an app or a broker?"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from unpoison.app import consumers_of
from unpoison.brokers import broker_for, dead_letters_for, sources_for
from unpoison.cli.loading import load
from unpoison.cli.screen import progress
from unpoison.deadletters.manager import STATES, DLQManager
from unpoison.errors import CapabilityError, LetterNotFound
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.wording import one_line
from unpoison.port.broker import Capability, DeadLetters, one_look
from unpoison.port.broker_url import masked

NO_SOURCES = "unpoison has not been used with any source there."

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class DLQ:
    """The dead letters of one source, and its manager."""

    source: str
    letters: DeadLetters
    manager: DLQManager

    def counts(self) -> dict[str, int]:
        """How many letters are in each state."""
        with one_look(self.letters):
            return {state: self.letters.count(state) for state in STATES}


@dataclass(frozen=True, slots=True)
class Target:
    """The DLQs that a command works on."""

    dlqs: Sequence[DLQ]

    def one(self) -> DLQ:
        """The only DLQ. Commands that change a whole DLQ need --source where there are several."""
        if len(self.dlqs) == 1:
            return self.dlqs[0]
        names = ", ".join(one_line(dlq.source) for dlq in self.dlqs)
        raise click.UsageError(f"Add --source NAME. Sources here: {names or 'none'}")

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Inside, each DLQ is read at most once; a bar shows progress on a terminal."""
        with progress("Reading") as advance, ExitStack() as open_looks:
            for dlq in self.dlqs:
                open_looks.enter_context(one_look(dlq.letters, advance))
            yield

    def find(self, letter_id: str) -> tuple[DLQ, DeadLetter]:
        """The letter with this id, in any of the DLQs."""
        missing = None
        for dlq in self.dlqs:
            try:
                return dlq, dlq.manager.get(letter_id)
            except LetterNotFound as error:
                if error.others:
                    raise
                missing = error
        if missing is not None and len(self.dlqs) == 1:
            raise missing
        if missing is None:
            raise click.ClickException(f"Dead letter {letter_id!r} is not here: {NO_SOURCES}")
        names = ", ".join(repr(dlq.source) for dlq in self.dlqs)
        see = "unpoison dlq ls --state all, with --app or --url"
        raise click.ClickException(f"Dead letter {letter_id!r} is in none of {names}. To see what is there: {see}")

    def find_waiting(self, letter_ids: Sequence[str]) -> list[tuple[DLQ, list[str]]]:
        """All of them by DLQ. All are found before any is changed, so that a mistyped id changes nothing."""
        found: dict[str, tuple[DLQ, list[str]]] = {}
        for dlq, letter in [self.find(letter_id) for letter_id in dict.fromkeys(letter_ids)]:
            if letter.state != "dead":
                raise LetterNotFound(letter.id, dlq.source, letter.state)
            found.setdefault(dlq.source, (dlq, []))[1].append(letter.id)
        return list(found.values())


def said_gone(count: int) -> str:
    """Says that letters disappeared between finding and changing them."""
    return f"{count:,} {'was' if count == 1 else 'were'} replayed, discarded or purged by someone else in the meantime."


def target_options(command: Function) -> Function:
    """The options that choose the DLQs; `target` makes a Target of them."""
    options = (
        click.option("--app", metavar="MODULE:APP", help="The app, for its broker and its sources."),
        click.option("--url", metavar="URL", help="The broker, in place of --app.  [default: UNPOISON_URL]"),
        click.option("--source", metavar="NAME", help="The source.  [default: all sources of the app or the broker]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def target(app: str | None, url: str | None, source: str | None) -> Target:
    """Open the DLQs. Creates nothing: a file or a source that does not exist is an error."""
    if app is not None and url is not None:
        raise click.UsageError("--app and --url both name a broker. Give one of them.")
    if app is not None:
        loaded = load(app)
        sources = [source] if source else list(consumers_of(loaded))
        if not sources:
            raise click.UsageError("The app has no consumer, so its sources are unknown. Add --source NAME.")
        return _opened(loaded.settings.url, sources, known=consumers_of(loaded) if loaded.settings.create else ())
    url = url or os.environ.get("UNPOISON_URL")
    if not url:
        raise click.UsageError("Name the app or the broker: add --app module:app or --url URL, or set UNPOISON_URL.")
    return _opened(url, [source] if source else None, known=())


def _opened(url: str, sources: Sequence[str] | None, known: Any) -> Target:
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
    # A source that the app consumes may not have been used yet; any other source that does not exist is a typing mistake.
    opened = [(source, dead_letters_for(url, source, create=source in known)) for source in sources]
    return Target([DLQ(source, letters, DLQManager(letters, source)) for source, letters in opened])
