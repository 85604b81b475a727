"""What brokers with SQL tables share: versions of tables, numbers of sources, publishing, ids and columns of dead letters."""

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Outgoing
from unpoison.port.broker import STORED, Published, all_or_none, by_source, without_source
from unpoison.port.reading import read_one
from unpoison.port.serialization import counters_text, headers_text, read_counters, record_text

_NUMBER = re.compile("[1-9][0-9]{0,17}")

C = TypeVar("C")


class SourceNumbers(dict[str, int]):
    """The number of each source. A source is looked up, or created, when it is first used."""

    def __init__(self, find: Callable[[str], int | None], create: Callable[[str], bool]) -> None:
        super().__init__()
        self._find, self._create = find, create
        self.created: list[str] = []
        """Sources created by publishing that the caller of `publish` does not know of yet."""

    def __missing__(self, source: str) -> int:
        number = self._find(source)
        if number is None:
            if self._create(source):
                self.created.append(source)
            number = self._find(source)
        if number is None:
            raise BrokerUnavailable(f"Source {source!r} was removed while it was opened. Try again.")
        self[source] = number
        return number


def no_source(source: str, where: str, known: Sequence[str], statement: str) -> ConfigError:
    """The error for a source that does not exist and may not be created. `statement` creates it."""
    names = ", ".join(map(repr, known)) or "none"
    return ConfigError(
        f"Source {source!r} does not exist in {where!r}, and create=False forbids creating it. Sources there: {names}. "
        f"Check the name; to create it, run there:\n{statement}"
    )


def check_version(found: int, newest: int, where: str, *, create: bool, more: str = "") -> None:
    """Refuse tables of a newer unpoison and, with create=False, tables that would have to be created or changed.

    Call it again inside the transaction that migrates: another process may have migrated since. `more` ends the advice.
    """
    if found > newest:
        raise ConfigError(
            f"{where!r} was written by a newer unpoison (tables of version {found}, this one knows {newest}). "
            f"Nothing was changed. Upgrade unpoison here, or use another URL."
        )
    if found < newest and not create:
        what = f"has unpoison tables of version {found}" if found else "has no tables of unpoison"
        raise ConfigError(
            f"{where!r} {what}, this unpoison needs version {newest}, and create=False forbids creating them. Run: "
            f"unpoison migrate URL, or take the statements for your own migrations from: unpoison migrate --sql URL{more}"
        )


def migration_script(migrations: Sequence[str], since: int = 0) -> str:
    """The statements for people's own migrations, from version `since`."""
    begin = ["create table if not exists unpoison_version (version integer not null);"]
    end = ["delete from unpoison_version;", f"insert into unpoison_version values ({len(migrations)});"]  # noqa: S608 - a number
    return "\n".join([*begin, *(f"{script.strip().removesuffix(';')};" for script in migrations[since:]), *end])


class ReportsFailure(Protocol):
    """Says what became of messages whose transaction failed. `committing`: the commit itself failed."""

    def __call__(self, messages: Sequence[Outgoing], error: BrokerUnavailable, *, committing: bool) -> Published: ...


def publish(
    messages: Sequence[Outgoing],
    numbers: SourceNumbers,
    transaction: Callable[[], AbstractContextManager[C]],
    write: Callable[[C, int, Sequence[Outgoing]], None],
    failed: ReportsFailure,
) -> Published:
    """Store all messages in one transaction, source by source, or none of them."""
    if missing := without_source(messages, numbers.__getitem__):
        return all_or_none(messages, missing)
    committing = False
    try:
        with transaction() as run:
            for source, batch in by_source(messages).items():
                write(run, numbers[source], batch)
            committing = True
    except BrokerUnavailable as error:
        return failed(messages, error, committing=committing)
    created, numbers.created = numbers.created, []
    return Published(created=created) if created else STORED


def split_by_delay(messages: Sequence[Outgoing]) -> tuple[Sequence[Outgoing], Sequence[Outgoing]]:
    """Those that are ready now, and those that are delayed."""
    delayed = [message for message in messages if message.delay > 0]
    return [message for message in messages if message.delay <= 0] if delayed else messages, delayed


def returned_counters(text: str | None) -> str | None:
    """The counters of a message that a vanished consumer held.

    Counters that cannot be read stay as they are: the fetch that finds them makes the message a dead letter.
    """
    return read_one(text, lambda each: counters_text(read_counters(each).returned()), lambda each, _: each)


def letter_values(letter: DeadLetter) -> dict[str, Any]:
    """The columns of a dead letter, without its number, source and state."""
    message = letter.message
    return {
        "replays": letter.replays,
        "fingerprint": letter.fingerprint,
        "id": message.id,
        "key": message.key,
        "headers": headers_text(message.headers),
        "body": message.body,
        "record": record_text(letter),
    }


class LetterIds:
    """Ids of the dead letters of one source: the name of the source and the number of the row."""

    def __init__(self, source: str) -> None:
        self._source = source

    def of(self, number: int) -> str:
        return f"{self._source}-{number}"

    def number(self, letter_id: str) -> int:
        """The number in an id; 0, which no letter has, for an id of another source."""
        source, _, number = letter_id.rpartition("-")
        return int(number) if source == self._source and _NUMBER.fullmatch(number) else 0

    def numbers(self, letter_ids: Sequence[str]) -> list[int]:
        return sorted({number for letter_id in letter_ids if (number := self.number(letter_id))})

    def between(self, after: str, until: str) -> tuple[int, int]:
        """Numbers above the first and up to the second."""
        return self.number(after) if after else 0, self.number(until) if until else 2**62

    def among(self, letter_ids: Sequence[str], numbers: Collection[int]) -> list[str]:
        """Those of the ids that have one of these numbers."""
        return [letter_id for letter_id in letter_ids if self.number(letter_id) in numbers]
