"""Which causes of dead letters does `unpoison status --watch` show, and does it read each letter once?"""

import pytest

from tests.e2e.command_line import dead_letters
from unpoison import App
from unpoison.brokers import dead_letters_for
from unpoison.cli import status_causes
from unpoison.cli.source_status import SourceStatus
from unpoison.cli.status_causes import Causes
from unpoison.port.at_broker import AtBroker
from unpoison.port.broker import Depth
from unpoison.store.letters.collector import Collector
from unpoison.store.letters.sql_letters import letters_for


def status(dead, source="orders"):
    return [SourceStatus(source, 0.0, AtBroker(Depth(ready=0, delayed=0, leased=0, dead=dead)))]


def shown(latest):
    return [(group.error_type, group.count, dict(group.sources)) for group in latest.groups]


@pytest.fixture
def pages(monkeypatch):
    """How many letters each question returned."""
    asked = []
    make = dead_letters_for

    def counting(*about, **options):
        letters = make(*about, **options)
        browse = letters.browse

        def counted(**which):
            found = browse(**which)
            asked.append(len(found))
            return found

        letters.browse = counted
        return letters

    monkeypatch.setattr(status_causes, "dead_letters_for", counting)
    return asked


def test_the_latest_cause_is_first_and_each_letter_is_read_once(tmp_path, pages):
    url = dead_letters(tmp_path, b"1", b"2")
    causes = Causes(url, "")
    assert shown(causes.look(status(2))) == [("KeyError", 2, {"orders": 2})]
    dead_letters(tmp_path, b"3", error=ValueError("x"))
    assert shown(causes.look(status(3))) == [("ValueError", 1, {"orders": 1}), ("KeyError", 2, {"orders": 2})]
    assert shown(causes.look(status(3)))[1] == ("KeyError", 2, {"orders": 2})
    assert sum(pages) == 3


def test_letters_that_were_sent_again_count_no_more(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2")
    causes = Causes(url, "")
    causes.look(status(2))
    app = App(url)
    app.dlq("orders").replay_one()
    app.close()
    assert shown(causes.look(status(1))) == [("KeyError", 1, {"orders": 1})]
    app = App(url)
    app.dlq("orders").purge()
    app.close()
    assert shown(causes.look(status(0))) == []


def test_letters_in_the_store_are_shown_too(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2")
    letters, store = dead_letters_for(url, "orders"), letters_for(url)
    store.open()
    Collector(letters, store, "orders").collect()
    store.close()
    letters.broker.close()
    assert shown(Causes(url, url).look(status(0))) == [("KeyError", 2, {"orders": 2})]
    assert shown(Causes(url, url).look(status(0, "emails"))) == []


def test_a_source_that_cannot_be_asked_has_none(tmp_path):
    assert Causes(f"sqlite:///{tmp_path / 'none.db'}", "").look(status(3)).groups == []
