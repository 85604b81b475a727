"""The DLQs that a command works on, and which letters of them are meant: by their ids, or by a filter."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import click

from unpoison.deadletters import DLQManager, Selection
from unpoison.errors import LetterNotFound
from unpoison.filters.filter import Filter
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.verdict import STATES
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import DeadLetters, one_look

NO_SOURCES = "unpoison has not been used with any source there."


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
