"""An index of texts in PostgreSQL: a table of them, with an index by the extension pg_trgm.

The extension is trusted: a role that may create something in the database may create it. Where it may not, there is no index
until an administrator has made both.
"""

from collections.abc import Sequence

from unpoison.store.conditions import Sql, like_pattern
from unpoison.store.rows import Execute, insert

_TABLE = "unpoison_letter_search"
_INDEX = "unpoison_letter_search_trigrams"
_SAMPLE, _COMMON = 200, 20
"""Of so many letters so many have a common text. Going through the letters in their order finds a page of it soon."""
_SCHEMA = "select nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace where extname = 'pg_trgm'"


class Trigrams:
    """Texts are in it as they are compared: with A to Z as a to z."""

    def is_there(self, run: Execute) -> bool:
        query = "select count(*) from pg_catalog.pg_class where relname = ? and pg_catalog.pg_table_is_visible(oid)"
        return bool(run(query, (_INDEX,)).fetchall()[0][0])

    def make(self, run: Execute) -> None:
        """The extension may be in another schema: another store of the same database has created it."""
        run("create extension if not exists pg_trgm", ())
        schema = str(run(_SCHEMA, ()).fetchall()[0][0]).replace('"', '""')
        run(f'create index if not exists {_INDEX} on {_TABLE} using gin (text "{schema}".gin_trgm_ops)', ())

    def add(self, run: Execute, texts: Sequence[tuple[int, str]]) -> None:
        """A letter that was deleted meanwhile is left out: its text would stay for ever."""
        numbers = [number for number, _ in texts]
        query = f"select no from unpoison_letters where no in ({', '.join('?' * len(numbers))})"
        here = {number for (number,) in run(query, numbers).fetchall()}
        insert(run, f"{_TABLE} (no, text)", [each for each in texts if each[0] in here])

    def is_common(self, run: Execute, pieces: Sequence[str]) -> bool:
        """Told from the latest letters: the index always finds all of them, and then takes as many as are asked for."""
        latest = f"select text from {_TABLE} order by no desc limit {_SAMPLE}"
        query = f"select count(*) from ({latest}) as latest where text like ? escape '\\'"
        return int(run(query, (_pattern(pieces),)).fetchall()[0][0]) >= _COMMON

    def finding(self, pieces: Sequence[str]) -> Sql:
        return Sql(f"select no from {_TABLE} where text like ? escape '\\'", (_pattern(pieces),))


def _pattern(pieces: Sequence[str]) -> str:
    return like_pattern(["", *pieces, ""])
