"""What were people told, and which process tells it? So that of a whole fleet one does, once, also after a restart.

A claim that is not confirmed ends by itself: a process that is killed before its notice was sent leaves it to another one.
"""

from collections.abc import Iterable, Mapping

from unpoison.store.rows import Execute
from unpoison.store.sql_store import Database

KEPT = 90 * 86_400.0
"""Seconds after which it is forgotten that something was told."""
MOST_KEPT = 100_000
UNSENT = 900.0
"""Seconds after which a claim ends that was not confirmed: longer than a notice is tried to be sent."""
AT_ONCE = 100
"""Claims in one transaction: in a SQLite file consumers wait meanwhile."""

_CLAIM = """
insert into unpoison_notices (subject, told_at, told_by, size, is_open, is_sent) values (?, ?, ?, ?, ?, ?)
on conflict (subject) do update
set told_at = excluded.told_at, told_by = excluded.told_by, size = excluded.size, is_open = excluded.is_open, is_sent = ?
where unpoison_notices.size * ? <= excluded.size or unpoison_notices.told_at <= ? or unpoison_notices.told_at > ?
    or (not unpoison_notices.is_sent and unpoison_notices.told_at <= ?)
"""
_COUNT = """
insert into unpoison_notices (subject, told_at, told_by, size, is_open, is_sent) values (?, ?, ?, 1, ?, ?)
on conflict (subject) do update set size = unpoison_notices.size + 1 where unpoison_notices.size < ?
"""
_TOO_MANY = f"""
delete from unpoison_notices
where told_at < (select told_at from unpoison_notices order by told_at desc limit 1 offset {MOST_KEPT})
"""


class ToldNotices:
    """One connection to what was told. `by` is the process that tells."""

    def __init__(self, database: Database, by: str) -> None:
        self._database, self._by = database, by

    def open(self, *, create: bool = True) -> None:
        self._database.open(create=create)
        with self._database.writing(durable=False) as run:
            run("delete from unpoison_notices where told_at < ?", (self._database.now(run) - KEPT,))
            run(_TOO_MANY, ())

    def close(self) -> None:
        self._database.close()

    def claim(self, subjects: Mapping[str, float], period: float | None, worse: float) -> set[str]:
        """Those of these subjects, each with its size, that this process tells now: nobody has within `period` (None: ever), or
        it was `worse` times smaller."""
        granted, waiting = set(), list(subjects.items())
        while waiting:
            part, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
            with self._database.writing(durable=False) as run:
                now = self._database.now(run)
                granted |= {subject for subject, size in part if self._claim(run, subject, size, now, period, worse)}
        return granted

    def _claim(self, run: Execute, subject: str, size: float, now: float, period: float | None, worse: float) -> bool:
        lasts = KEPT if period is None else period
        # One in the future was written before the clock was set back.
        values = (subject, now, self._by, size, True, False, False, worse, now - lasts, now + lasts, now - UNSENT)
        return run(_CLAIM, values).rowcount == 1

    def confirm(self, subjects: Iterable[str]) -> None:
        """They were sent."""
        self._each("update unpoison_notices set is_sent = true where subject = ? and told_by = ?", subjects)

    def take_back(self, subjects: Iterable[str]) -> None:
        """They could not be sent: another process may tell them."""
        self._each("delete from unpoison_notices where subject = ? and told_by = ?", subjects)

    def _each(self, statement: str, subjects: Iterable[str]) -> None:
        waiting = list(subjects)
        while waiting:
            part, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
            with self._database.writing(durable=False) as run:
                for subject in part:
                    run(statement, (subject, self._by))

    def end(self, subject: str) -> bool:
        """Something that lasted is over. Whether this process tells that: it was told that it began, and nobody was faster."""
        with self._database.writing(durable=False) as run:
            changed = run("update unpoison_notices set is_open = ? where subject = ? and is_open = ?", (False, subject, True))
            return changed.rowcount == 1

    def count(self, what: str, seconds: float, most: int) -> bool:
        """Whether the fleet may send one more of these within these seconds."""
        with self._database.writing(durable=False) as run:
            now = self._database.now(run)
            run("delete from unpoison_notices where subject like ? and told_at < ?", (f"sent|{what}|%", now - 2 * seconds))
            subject = f"sent|{what}|{int(now // seconds)}"
            return run(_COUNT, (subject, now, self._by, False, True, most)).rowcount == 1
