"""What brokers with SQL tables share: numbers of sources, publishing, dead letters."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import STORED, WHOLE_BYTES, Broker, Published, all_or_none, by_source, without_source
from unpoison.port.reading import as_bytes, first_within, read_one
from unpoison.port.serialization import LETTER_COLUMNS, counters_text, headers_text, letter, read_counters, record_text

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


class SentBack(NamedTuple):
    """A message whose letter is elsewhere, as the columns of a table have it."""

    alone: bool
    counters: str | None
    id: str
    key: str | None
    headers: str | None
    body: bytes


def _sent_back(whole: WholeLetter) -> SentBack:
    counters, message = whole.letter.replayed(), whole.letter.message
    headers = headers_text(message.headers) if whole.native is None else whole.native.decode()
    return SentBack(counters.alone, counters_text(counters), message.id, message.key, headers, message.body)


def _whole(letter: DeadLetter, row: Sequence[Any]) -> WholeLetter:
    """Only headers that another program has written in a way of its own have to be kept as they are."""
    headers = row[6]
    is_ours = headers == headers_text(letter.message.headers)
    return WholeLetter(letter=letter, native=None if is_ours or headers is None else as_bytes(headers))


class HasNumbers(Broker, Protocol):
    """A broker whose sources have numbers."""

    numbers: SourceNumbers


B = TypeVar("B", bound=HasNumbers)


class SQLDeadLetters(ABC, Generic[B, C]):
    """The DLQ of one source in a table, of the broker B with connections C. What depends on the database is below.

    Every change is one transaction that first claims the letters by their state: of two operators only one gets each, and a
    crash at any moment leaves it either where it was or where it was sent.
    """

    mark: ClassVar[str]  # what stands for a value in a statement
    any_state: ClassVar[str] = "unpoison_dead"  # the table, to be read in the order of the numbers whatever the state
    body_size: ClassVar[str] = "octet_length(body)"

    def __init__(self, broker: B, source: str) -> None:
        self.broker, self._source, self._ids = broker, source, LetterIds(source)

    def count(self, state: str = "dead") -> int:
        return int(self._select("counting letters", "count(*)", ("state =", state))[0][0])

    def freeze(self) -> str:
        return self._ids.of(self._select("looking where the DLQ ends", "max(no)")[0][0] or 0)

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        if only is None:
            return self._letters(state, *self._between(after, until), limit=limit)
        return self._letters(state, ("no =", self._ids.number(only))) or self._letters(state, ("id =", only))

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = "dead") -> Sequence[str]:
        where = (("state =", state), *self._between(after, until))
        return [self._ids.of(no) for (no,) in self._select("listing letters", "no", *where, limit=limit)]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """Claim each letter by changing its state, then put its message back; all in one transaction."""
        with self.changing("replaying letters") as run:
            found = self.claim(run, self._ids.numbers(letter_ids), "dead", LETTER_COLUMNS.replace("body", "''"))
            again = {row[0]: letter(self._source, row).replayed() for row in found}
            if again:
                self.change(run, list(again), "replayed")
                self.put_back(run, again)
        return self._ids.among(letter_ids, again)

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        with self.changing("removing letters") as run:
            found = [no for (no,) in self.claim(run, self._ids.numbers(letter_ids), state, "no")]
            self.change(run, found, keep_as)
        return self._ids.among(letter_ids, set(found))

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        """How large each is is asked first."""
        first, last = self._ids.between(after, "")
        where = (("state =", "dead"), ("no >", first))
        sizes = self._select("looking at letters", f"no, {self.body_size}", *where, ("no <=", last), limit=limit)
        count = first_within((size or 0 for _, size in sizes), most_bytes)
        if not count:
            return []
        found = self._select("reading letters", LETTER_COLUMNS, *where, ("no <=", sizes[count - 1][0]), limit=count)
        return [_whole(letter(self._source, row), row) for row in found]

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        """All of them in one transaction, or none."""
        rows = [_sent_back(each) for each in letters]
        if rows:
            with self.changing("sending letters back") as run:
                self.put_in(run, rows)
        return STORED

    @abstractmethod
    def rows(self, what: str, query: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
        """What the query finds. `what` is what this is done for, in a few words."""

    @abstractmethod
    def changing(self, what: str) -> AbstractContextManager[C]:
        """A transaction that is on disk when the block ends."""

    @abstractmethod
    def claim(self, run: C, numbers: Sequence[int], state: str, columns: str) -> Sequence[Sequence[Any]]:
        """Columns of those of these letters that are in this state. Nobody else can change them before the transaction ends."""

    @abstractmethod
    def change(self, run: C, numbers: Sequence[int], state: str | None) -> None:
        """Give these letters, which are claimed, another state; None deletes them."""

    @abstractmethod
    def put_back(self, run: C, again: Mapping[int, Counters]) -> None:
        """Put the messages of these letters back into their source, with new counters."""

    @abstractmethod
    def put_in(self, run: C, messages: Sequence["SentBack"]) -> None:
        """Put these messages into the source."""

    @property
    def number(self) -> int:
        """The number of the source."""
        return self.broker.numbers[self._source]

    def _between(self, after: str, until: str) -> Iterator[tuple[str, object]]:
        return zip(("no >", "no <="), self._ids.between(after, until), strict=True)

    def _letters(self, state: str | None, *where: tuple[str, object], limit: int = 100) -> Sequence[DeadLetter]:
        where = (("state =", state), *where) if state else where
        found = self._select("reading letters", LETTER_COLUMNS, *where, limit=limit)
        return [letter(self._source, row) for row in found]

    def _select(self, what: str, columns: str, *where: tuple[str, object], limit: int | None = None) -> Sequence[Sequence[Any]]:
        """Columns of letters of this source that meet the conditions; in their order if there is a limit."""
        conditions, values = zip(("source =", self.number), *where, strict=True)
        meets = " and ".join(f"{condition} {self.mark}" for condition in conditions)
        if limit is None:
            return self.rows(what, f"select {columns} from unpoison_dead where {meets}", values)
        table = "unpoison_dead" if "state =" in conditions else self.any_state
        query = f"select {columns} from {table} where {meets} order by no limit {self.mark}"
        return self.rows(what, query, (*values, limit))
