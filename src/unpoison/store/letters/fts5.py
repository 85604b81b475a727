"""An index of texts in SQLite: FTS5, with all groups of three characters of a text. It keeps the texts themselves nowhere."""

from collections.abc import Sequence

from unpoison.store.conditions import Sql
from unpoison.store.rows import Execute

_TABLE = "unpoison_letter_search"
_CREATE = f"""create virtual table if not exists {_TABLE}
    using fts5 (text, content='', tokenize='trigram', detail='none', columnsize=0)"""
_HAS_TRIGRAMS = (3, 34, 0)


class FTS5:
    """Some programs bring a SQLite without FTS5, or one without the tokenizer. Then there is none."""

    def is_there(self, run: Execute) -> bool:
        query = "select sqlite_version(), (select count(*) from pragma_module_list where name = 'fts5')"
        version, modules = run(query, ()).fetchall()[0]
        return bool(modules) and tuple(map(int, version.split("."))) >= _HAS_TRIGRAMS

    def add(self, run: Execute, texts: Sequence[tuple[int, str]]) -> None:
        run(_CREATE, ())
        for number, text in texts:
            run(f"insert into {_TABLE} (rowid, text) values (?, ?)", (number, text))

    def is_common(self, run: Execute, pieces: Sequence[str]) -> bool:
        """It finds as many as are asked for, and no more."""
        return False

    def finding(self, pieces: Sequence[str]) -> Sql:
        groups = dict.fromkeys(piece[at : at + 3] for piece in pieces for at in range(len(piece) - 2))
        query = " AND ".join('"' + group.replace('"', '""') + '"' for group in groups)
        return Sql(f"select rowid from {_TABLE} where {_TABLE} match ?", (query,))
