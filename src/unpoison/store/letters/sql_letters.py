"""The part of the store that keeps dead letters, in a database."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unpoison.filters.filter import Filter
from unpoison.model.dead_letter import WholeLetter
from unpoison.redaction.keys import Keys, keys_from
from unpoison.redaction.rules import Redact, rules_from
from unpoison.store.choice import database_for
from unpoison.store.letters import audit, claims, group_work
from unpoison.store.letters.changes import LetterChanges
from unpoison.store.letters.columns import INDEXED, as_column
from unpoison.store.letters.groups import GroupReader
from unpoison.store.letters.people import by_ids
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.reading import LetterReader, Meant, in_state
from unpoison.store.letters.redacting import Redacting
from unpoison.store.letters.regrouping import Regrouping
from unpoison.store.letters.text_index import TextIndex
from unpoison.store.letters.turns import Turns, take_turn
from unpoison.store.letters.values import (
    DELETED,
    AuditEntry,
    Change,
    Changed,
    GroupWork,
    Ingested,
    Order,
    Page,
    Position,
    Progress,
    Selection,
    StoredGroup,
    StoredLetter,
    TextIndexState,
    Turn,
)
from unpoison.store.letters.writing import put
from unpoison.store.sql_store import LetterDatabase

_NAMED_AT_ONCE = 500


class SQLLetterStore:
    """The letters in a database. `clock` tells how long a transaction takes."""

    def __init__(
        self,
        database: LetterDatabase,
        clock: Callable[[], float] = time.perf_counter,
        *,
        redact: Sequence[Redact] = (),
        keys: Keys | None = None,
    ) -> None:
        self._database = database
        self.redaction = Redacting(database, redact, keys or Keys())
        self._turns, self._index = Turns(database, clock), TextIndex(database, clock)
        self._letters = LetterReader(database, self._index.candidates)
        self._groups = GroupReader(database)

    def open(self, *, create: bool = True) -> None:
        self._database.open(create=create)
        try:
            self.redaction.read()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        self._database.close()

    def put(self, letters: Sequence[WholeLetter], turn: Turn | None = None) -> Ingested:
        ingested = self.redaction.writing(lambda redact, may: put(self._turns, map(redact, letters), turn, may))
        self._database.wrote_letters(ingested.new)
        return ingested

    def may_collect(self, turn: Turn, seconds: float) -> bool:
        with self._database.writing() as run:
            return claims.collect(run, turn, seconds, self._database.now(run))

    def end_collecting(self, turn: Turn) -> None:
        with self._database.writing(durable=False) as run:
            claims.end_collecting(run, turn)

    def claim(self, numbers: Sequence[int], *, by: str, seconds: float) -> Sequence[int]:
        if not numbers:
            return []
        with self._database.writing(durable=False) as run:
            take_turn(run)
            return claims.claim(run, numbers, by, seconds, self._database.now(run))

    def release(self, numbers: Sequence[int], *, by: str) -> None:
        if numbers:
            with self._database.writing(durable=False) as run:
                claims.release(run, numbers, by)

    def get(self, number: int) -> StoredLetter | None:
        found = self._letters.find("l.no = ?", (number,))
        return found[0] if found else None

    def find(self, letter_id: str, source: str | None = None, place: str | None = None) -> Sequence[StoredLetter]:
        """Found by the id alone: with more conditions SQLite takes an index that has all letters of a source."""
        found = self._letters.find(f"lower(substr(l.letter_id, 1, {INDEXED})) = lower(?)", (letter_id[:INDEXED],))
        asked = (letter_id, source, place)
        return [each for each in found if all(map(_is_asked, asked, (each.letter.id, each.letter.source, each.place)))]

    def page(
        self,
        where: Filter | None = None,
        *,
        state: str | None = None,
        order: Order = Order.TIME,
        is_descending: bool = True,
        after: Position | None = None,
        limit: int = 50,
        now: float | None = None,
        progress: Progress | None = None,
    ) -> Page:
        meant = self._meant(where, state, now)
        return self._letters.page(meant, order, is_descending=is_descending, after=after, limit=limit, progress=progress)

    def count(
        self, where: Filter | None = None, *, state: str | None = None, now: float | None = None, progress: Progress | None = None
    ) -> int:
        return self._letters.count(self._meant(where, state, now), progress)

    def counts(self, source: str) -> Mapping[str, int]:
        query = "select state, sum(letters) from unpoison_letter_counts where source = ? group by state"
        with self._database.reading() as run:
            return {state: int(count) for state, count in run(query, (source,)).fetchall()}

    def counts_at(self, place: str) -> Mapping[str, int]:
        query = "select state, count(*) from unpoison_letters where place = ? group by state"
        with self._database.reading() as run:
            return {state: int(count) for state, count in run(query, (as_column(place),)).fetchall()}

    def sources_at(self, place: str) -> Sequence[str]:
        query = "select distinct source from unpoison_letters where place = ? order by source"
        with self._database.reading() as run:
            return [source for (source,) in run(query, (as_column(place),)).fetchall()]

    def select(
        self, where: Filter | None = None, *, state: str | None = None, now: float | None = None, progress: Progress | None = None
    ) -> Selection:
        found = self._letters.select(self._meant(where, state, now), progress)
        return replace(found, where=self.told(where, state))

    def named(
        self, numbers: Sequence[int], source: str | None = None, place: str | None = None
    ) -> Sequence[tuple[int, str, str]]:
        found: list[tuple[int, str, str]] = []
        column, value = ("place", place) if source is None else ("source", source)
        for first in range(0, len(numbers), _NAMED_AT_ONCE):
            part = numbers[first : first + _NAMED_AT_ONCE]
            marks = ", ".join("?" * len(part))
            query = f"select no, letter_id, state from unpoison_letters where no in ({marks}) and {column} = ? order by no"
            with self._database.reading() as run:
                found += [(no, letter_id, state) for no, letter_id, state in run(query, (*part, value)).fetchall()]
        return found

    def groups(
        self,
        where: Filter | None = None,
        *,
        state: str | None = None,
        limit: int | None = None,
        trend_since: float | None = None,
        now: float | None = None,
        progress: Progress | None = None,
    ) -> Sequence[StoredGroup]:
        meant = self._meant(where, state, now)
        return self._groups.groups(self._letters.kinds(meant, progress), limit=limit, trend_since=trend_since)

    def change(
        self, selection: Selection, change: Change, *, by: str, progress: Progress | None = None, claimant: str = ""
    ) -> Changed:
        return LetterChanges(self._turns).change(selection, change, by, progress, claimant)

    def expire(self, where: Filter, *, by: str, progress: Progress | None = None) -> Changed:
        return self.change(self.select(where), Change(DELETED, "expired"), by=by, progress=progress)

    def change_group(self, fingerprint: str, *, by: str, **given: Any) -> GroupWork:
        return group_work.change(self._turns, fingerprint, given, by)

    def regroup(self, progress: Progress | None = None) -> int:
        return Regrouping(self._database, self._turns).regroup(progress)

    def original(self, stored: StoredLetter) -> WholeLetter:
        return self.redaction.original(stored)

    def reveal(self, stored: StoredLetter, *, by: str, reason: str) -> WholeLetter:
        self.redaction.note_revealed(by_ids([stored.letter.id]), 1, by, reason)
        return self.redaction.original(stored)

    def told(self, where: Filter | None, state: str | None = None) -> str:
        term = in_state(None if where is None else where.term, state)
        return "" if term is None else str(self.redaction.told(term))

    def index_text(self, seconds: float | None = None) -> TextIndexState:
        return self._index.index(seconds)

    def text_index(self) -> TextIndexState:
        return self._index.state()

    def audit(self, *, before: int | None = None, limit: int = 50) -> Sequence[AuditEntry]:
        with self._database.reading() as run:
            return audit.entries(run, before, limit)

    def _meant(self, where: Filter | None, state: str | None, now: float | None) -> Meant:
        term = self.redaction.found_by_hash(None if where is None else where.term)
        return self._letters.meant(term, state, now)


def _is_asked(wanted: str | None, there: str) -> bool:
    return wanted in (None, there)


def letters_for(url: str, redact: Sequence[str] = ()) -> LetterStore:
    """The part of a store that keeps dead letters, not yet opened. What comes into it is redacted by these rules, and by those
    that it has already."""
    return SQLLetterStore(database_for(url, is_queue=False), redact=rules_from(redact), keys=keys_from())
