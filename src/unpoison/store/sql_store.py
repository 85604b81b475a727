"""The store in a SQL database.

Every statement that changes something says itself under which condition it does (nobody was faster, a time that has come). So of
two consumers that do the same at the same moment one does it, whatever either has read before.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from unpoison.model.events import fields
from unpoison.store import rows
from unpoison.store.conditions import Sql
from unpoison.store.port import (
    ADMISSION,
    FORGOTTEN,
    MOST_INTERVALS,
    OPERATOR,
    RESUMED,
    ConsumerSign,
    Pause,
    Shared,
    SharedCircuit,
)
from unpoison.store.rows import Execute

log = logging.getLogger("unpoison")

SIGN_EVERY = 10.0
"""Seconds between two signs of life that are written: each is a write, and wakes consumers that wait at the same SQLite file."""
COUNTS_EVERY = 1.5
"""The same where its counts have changed: a consumer that is busy writes to its broker far more often."""
ALIVE = 30.0
"""Seconds after its last sign of life for which a consumer counts as alive."""
KEPT = 600.0
"""Seconds after which the sign of a consumer that ended without a word is removed."""
HEARD_EVERY = 60.0
"""Seconds between two notes that something was heard of an outage."""

_HEARD = "update unpoison_circuits set heard_at = ? where source = ? and dependency = ? and heard_at < ?"
_CLAIM = f"""
update unpoison_circuits set next_probe_at = ?, probe_interval = ?, told_by = ?
where source = ? and dependency = ? and (next_probe_at <= ? or next_probe_at > ? + {MOST_INTERVALS} * probe_interval)
"""
_CHANGE = """
update unpoison_circuits set state = ?, revision = revision + 1 where source = ? and dependency = ? and revision = ?
"""
_CLOSE = "delete from unpoison_circuits where source = ? and dependency = ?"
_END = "delete from unpoison_pauses where source = ? and kind = ? and since = ?"
_ADD_VERSION = "insert into unpoison_code_versions (source, code_version, first_seen) values (?, ?, ?) on conflict do nothing"
_FIRST_SEEN = "select first_seen from unpoison_code_versions where source = ? and code_version = ?"
_SEEN_LATER = "select code_version from unpoison_code_versions where source = ? and first_seen > ?"


class Database(Protocol):
    """One connection to a database. Its errors are StoreUnavailable, or ConfigError if it cannot be a store."""

    def open(self, *, create: bool) -> None: ...

    def close(self) -> None: ...

    def reading(self) -> AbstractContextManager[Execute]: ...

    def writing(self, *, durable: bool = True) -> AbstractContextManager[Execute]:
        """A transaction. If it is durable, it is on disk when the block ends."""

    def now(self, run: Execute) -> float:
        """Seconds since 1970 by the clock of the database."""


class IndexesTexts(Protocol):
    """The index of texts that a database can have (`text_index.py`)."""

    def is_there(self, run: Execute) -> bool: ...

    def add(self, run: Execute, texts: Sequence[tuple[int, str]]) -> None:
        """Texts of letters, by their numbers."""

    def is_common(self, run: Execute, pieces: Sequence[str]) -> bool:
        """Whether so many letters have these pieces that finding them all would take long."""

    def finding(self, pieces: Sequence[str]) -> Sql:
        """Finds the numbers of letters that may have these pieces in their text: of three characters each, or more."""


class LetterDatabase(Database, Protocol):
    """One that keeps letters too."""

    most_held: float
    """Seconds for which a transaction may keep others out."""

    @property
    def text_index(self) -> IndexesTexts: ...

    def make_text_index(self) -> None:
        """Make the index of texts, where that needs a step of its own and may be done."""

    def wrote_letters(self, count: int) -> None:
        """So many letters are new."""


class SQLStore:
    """The store in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted: set[tuple[str, str | None]] = set()
        """Sources and code versions that the database has for certain."""

    def open(self, *, create: bool = True) -> None:
        self._noted.clear()
        self._database.open(create=create)

    def close(self) -> None:
        self._database.close()

    def exchange(self, sign: ConsumerSign, circuits: Sequence[SharedCircuit]) -> Shared:
        shared, signs = self._look(sign.source)
        if not self._has_news(sign, signs, circuits, shared):
            return shared
        with self._database.writing(durable=False) as run:
            self._write(run, sign, circuits, shared, self._database.now(run))
        return self._look(sign.source)[0]

    def _look(self, source: str) -> tuple[Shared, Sequence[ConsumerSign]]:
        """What the fleet knows, and all signs of life."""
        with self._database.reading() as run:
            now = self._database.now(run)
            found, circuits, signs = rows.pauses(run, source), rows.circuits(run, source), rows.signs(run, source)
            pauses = _pauses(found)
            newer = {version for pause in pauses if pause.kind == ADMISSION for version in _newer(run, pause)}
        alive = _alive(signs, now)
        versions = {each.code_version for each in alive}
        resumed_at = next((each.since for each in found if each.kind == RESUMED), None)
        return Shared(pauses, circuits, newer, len(alive), now, versions, resumed_at), signs

    def _has_news(
        self, sign: ConsumerSign, signs: Sequence[ConsumerSign], circuits: Sequence[SharedCircuit], shared: Shared
    ) -> bool:
        now = shared.now
        ours = next((each for each in signs if each.consumer == sign.consumer), None)
        if ours is None or not 0 <= now - ours.seen_at < SIGN_EVERY or (sign.source, sign.code_version) not in self._noted:
            return True
        if (ours.state, ours.code_version) != (sign.state, sign.code_version):
            return True
        if now - ours.seen_at >= COUNTS_EVERY and (ours.done, ours.failed, ours.dead) != (sign.done, sign.failed, sign.dead):
            return True
        if not _is_held(shared) and any(now - each.heard_at > FORGOTTEN for each in shared.circuits):
            return True
        there = _by_dependency(shared.circuits)
        return any(is_it(each, there) for each in circuits for is_it in (_is_new, _is_changed, _is_heard_of))

    def _write(self, run: Execute, sign: ConsumerSign, circuits: Sequence[SharedCircuit], shared: Shared, now: float) -> None:
        """Reads nothing, so that it is short."""
        rows.put_sign(run, sign, now)
        run("delete from unpoison_consumers where source = ? and seen_at < ?", (sign.source, now - KEPT))
        if sign.code_version is not None:
            run(_ADD_VERSION, (sign.source, sign.code_version, now))
        there = _by_dependency(shared.circuits)
        for each in circuits:
            if _is_new(each, there):
                rows.add_circuit(run, each, now)
            if _is_changed(each, there):
                run(_CHANGE, (each.state, each.source, each.dependency, each.revision))
            if _is_heard_of(each, there):
                run(_HEARD, (each.heard_at, each.source, each.dependency, each.heard_at))
        if not _is_held(shared):
            run("delete from unpoison_circuits where source = ? and heard_at < ?", (sign.source, now - FORGOTTEN))
        self._noted.add((sign.source, sign.code_version))

    def claim_probe(self, source: str, dependency: str, interval: float, consumer: str) -> bool:
        with self._database.writing(durable=False) as run:
            now = self._database.now(run)
            return run(_CLAIM, (now + interval, interval, consumer, source, dependency, now, now)).rowcount == 1

    def close_circuit(self, source: str, dependency: str, since: float | None = None) -> None:
        with self._database.writing(durable=False) as run:
            if since is None:
                run(_CLOSE, (source, dependency))
            else:
                run(f"{_CLOSE} and since = ?", (source, dependency, since))

    def pause(self, pause: Pause) -> None:
        with self._database.writing() as run:
            for older in rows.pauses(run, pause.source) if pause.kind == ADMISSION else ():
                if older.kind == ADMISSION and pause.code_version in _newer(run, older):
                    run(_END, (older.source, older.kind, older.since))
            rows.add_pause(run, pause, self._database.now(run))

    def resume(self, source: str, by: str, kinds: Collection[str] = (OPERATOR, ADMISSION)) -> Sequence[Pause]:
        with self._database.writing() as run:
            ended = [
                each
                for each in rows.pauses(run, source)
                if each.kind in kinds and run(_END, (source, each.kind, each.since)).rowcount
            ]
            if OPERATOR in kinds and any(each.kind == ADMISSION for each in ended):  # a person says that all is well
                run("delete from unpoison_pauses where source = ? and kind = ?", (source, RESUMED))
                rows.add_pause(run, Pause(source, RESUMED, "", by), self._database.now(run))
            if any(each.kind == OPERATOR for each in ended):  # nothing could be heard of an outage meanwhile
                now = self._database.now(run)
                run("update unpoison_circuits set heard_at = ? where source = ? and heard_at < ?", (now, source, now))
        for each in ended:
            extra = fields("resume", source=source, reason=each.kind, by=by)
            log.info("%s ends the pause of %r by %s.", by, source, each.by, extra=extra)
        return ended

    def leave(self, consumer: str, source: str) -> None:
        with self._database.writing(durable=False) as run:
            run("delete from unpoison_consumers where source = ? and consumer = ?", (source, consumer))

    def pauses(self, source: str | None = None) -> Sequence[Pause]:
        with self._database.reading() as run:
            return _pauses(rows.pauses(run, source))

    def circuits(self, source: str | None = None) -> Sequence[SharedCircuit]:
        with self._database.reading() as run:
            return rows.circuits(run, source)

    def consumers(self, source: str | None = None) -> Sequence[ConsumerSign]:
        with self._database.reading() as run:
            return _alive(rows.signs(run, source), self._database.now(run))

    def waiting_letters(self) -> Mapping[str, int]:
        query = "select source, sum(letters) from unpoison_letter_counts where state = 'dead' group by source"
        with self._database.reading() as run:
            return {source: int(count) for source, count in run(query, ()).fetchall() if count}


def _pauses(found: Sequence[Pause]) -> Sequence[Pause]:
    return [each for each in found if each.kind != RESUMED]


def _is_held(shared: Shared) -> bool:
    """Whether a person has paused the source."""
    return any(pause.kind == OPERATOR for pause in shared.pauses)


def _newer(run: Execute, pause: Pause) -> set[str]:
    """The code versions that were first seen later than the one that this pause is about."""
    seen = [] if pause.code_version is None else run(_FIRST_SEEN, (pause.source, pause.code_version)).fetchall()
    since = seen[0][0] if seen else pause.since
    return {version for (version,) in run(_SEEN_LATER, (pause.source, since)).fetchall()}


def _alive(signs: Sequence[ConsumerSign], now: float) -> list[ConsumerSign]:
    return [each for each in signs if now - each.seen_at <= ALIVE]


def _by_dependency(circuits: Sequence[SharedCircuit]) -> Mapping[str, SharedCircuit]:
    return {each.dependency: each for each in circuits}


def _is_new(circuit: SharedCircuit, there: Mapping[str, SharedCircuit]) -> bool:
    """One that was known in the store and has gone from there is over, which its consumer has not heard yet."""
    return circuit.revision == 0 and circuit.dependency not in there


def _is_changed(circuit: SharedCircuit, there: Mapping[str, SharedCircuit]) -> bool:
    known = there.get(circuit.dependency)
    return known is not None and known.revision == circuit.revision and known.state != circuit.state


def _is_heard_of(circuit: SharedCircuit, there: Mapping[str, SharedCircuit]) -> bool:
    known = there.get(circuit.dependency)
    return known is not None and circuit.heard_at - known.heard_at >= HEARD_EVERY
