"""Is docs/sqlite.md true of the file that unpoison makes?"""

import re
import sqlite3
from contextlib import closing

from tests.docs.pages import ROOT, blocks
from tests.docs.test_reference import table
from unpoison import App
from unpoison.brokers.sqlite.errors import BUSY_TIMEOUT
from unpoison.brokers.sqlite.file import LOG_LIMIT

PAGE = (ROOT / "docs" / "sqlite.md").read_text()
SECTION = PAGE.partition("\n## Looking inside")[2].partition("\n## ")[0]


def a_dead_letter(path) -> None:
    app = App(f"sqlite:///{path}")

    @app.consumer("orders", isolation="inline")
    def fail(order: dict) -> None:
        raise ValueError(order)

    app.publish_many("orders", [{"id": 1}])
    app.run(until_empty=True)
    app.publish_many("orders", [{"id": 2}])
    app.close()


def test_every_table_is_there_and_each_question_can_be_asked(tmp_path):
    a_dead_letter(tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        tables = {name for (name,) in file.execute("select name from sqlite_master where type = 'table'") if "unpoison" in name}
        assert set(table("sqlite.md", "Looking inside")) == tables
        questions = re.findall(r"\| `(select [^`]+)` \|", SECTION)
        assert len(questions) == len(tables) - 2
        for question in questions:
            file.execute(question).fetchall()
        assert file.execute(next(each for each in questions if "dead" in each)).fetchall()[0][1] == "{'id': 1}"


def test_a_backup_made_as_the_page_says_has_what_a_plain_copy_lacks(tmp_path, monkeypatch):
    """While a program has the file open, the latest messages are in its log alone."""
    monkeypatch.chdir(tmp_path)
    app = App("sqlite:///shop.db")
    app.publish_many("orders", [{"id": 1}, {"id": 2}])
    (tmp_path / "copied.db").write_bytes((tmp_path / "shop.db").read_bytes())
    exec(next(block.text for block in blocks(PAGE) if block.file == "backup.py"), {})
    app.close()

    def line(name: str) -> int | str:
        with closing(sqlite3.connect(tmp_path / name)) as file:
            try:
                return file.execute("select count(*) from unpoison_line").fetchone()[0]
            except sqlite3.DatabaseError as error:
                return str(error)

    assert line("second.db") == 2
    assert line("copied.db") != 2


def test_what_a_consumer_held_at_the_time_of_the_backup_comes_back(tmp_path):
    """The backup lies alone: the lock files of the consumers that it names are not beside it."""
    started = App(f"sqlite:///{tmp_path}/shop.db")

    @started.consumer("orders", isolation="inline")
    def back_up(order: dict) -> None:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as live:
            live.execute(f"vacuum into '{tmp_path}/backup.db'")

    started.publish("orders", {"id": 1})
    started.run(until_empty=True)
    restored, seen = App(f"sqlite:///{tmp_path}/backup.db"), []

    @restored.consumer("orders", isolation="inline")
    def ship(order: dict) -> None:
        seen.append(order)

    restored.run(until_empty=True)
    started.close()
    restored.close()
    assert seen == [{"id": 1}]


def test_its_figures_are_those_of_the_code():
    assert f"cut to {LOG_LIMIT // 2**20} MiB" in PAGE
    assert f"up\nto {BUSY_TIMEOUT:g} seconds" in PAGE
