"""With an index of texts the same letters are found, and it says how far behind it is."""

import os
from contextlib import contextmanager
from itertools import pairwise

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings

from tests.unit.filtering import NOW, filters, letter
from tests.unit.letter_stores import all_of, arrivals, emptied, many, opened
from tests.unit.stores import in_new_schema
from tests.unit.test_letter_filters import assert_same, stored_letters
from tests.unit.test_letter_store import Stopwatch
from unpoison.filters.filter import Filter
from unpoison.store import schema
from unpoison.store.letters import text_index
from unpoison.store.letters.fts5 import FTS5
from unpoison.store.letters.values import DELETED, Change, TextIndexState


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory):
    store = opened(f"sqlite:///{tmp_path_factory.mktemp('letters')}/letters.db")
    yield store
    store.close()


@pytest.fixture(scope="module")
def database(postgresql):
    return postgresql.fresh()


@pytest.fixture(scope="module")
def postgresql_store(database):
    store = opened(in_new_schema(database))
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request):
    store = request.getfixturevalue(f"{request.param}_store")
    emptied(store)
    return store


def named(store, text):
    with store._database.reading() as run:
        return store._index.candidates(run, Filter.parse(text).term)


def assert_found(store, term, some):
    emptied(store)
    store.put(arrivals(some))
    assert store.index_text() == TextIndexState(True, 0)
    assert_same(store, term, all_of(store))


@given(term=filters, some=stored_letters)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_sqlite_finds_the_same_letters_by_its_index(sqlite_store, term, some):
    assert_found(sqlite_store, term, some)


@given(term=filters, some=stored_letters)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_postgresql_finds_the_same_letters_by_its_index(postgresql_store, term, some):
    assert_found(postgresql_store, term, some)


QUERY = "select rowid from unpoison_letter_search where unpoison_letter_search match ? order by rowid"
TEXTS = [
    "violin",
    "VIOLIN",
    '"violin and"',
    "viol*piano",
    "error:violin",
    "error:*violin*",
    "body:violin",
    "traceback:violin",
    "key:violin*",
    "id:*violin*",
    "vi",
    "vi*in",
    'violin "and piano"',
    "violin or drum",
    "not violin",
    "drum -violin",
    r'"v\"i"',
    "ÉTÉ",
    "été",
    "body.text:violin",
    'error="violin"',
]
LETTERS = [
    letter(error="violin"),
    letter(body=b"violin and piano"),
    letter(body=b'{"text":"violin"}'),
    letter(key="Violin-7", error="drum"),
    letter(traceback="in violin\nand piano", error="drum"),
    letter(message_id="violin", error="\u00e9t\u00e9"),
    letter(body=b"violin" + b" " * 9_000, error="\u00c9T\u00c9"),
    letter(body=b"violin\0", error='v"i'),
    letter(error="nothing"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_words_are_found_wherever_they_are(store, text):
    store.put(arrivals(LETTERS[:6]))
    store.index_text()
    store.put(arrivals(LETTERS))
    assert store.text_index() == TextIndexState(True, 3)
    assert_same(store, Filter.parse(text).term, all_of(store))
    assert store.index_text() == TextIndexState(True, 0)
    assert_same(store, Filter.parse(text).term, all_of(store))


def test_a_rare_text_is_looked_for_in_a_few_letters_only(store):
    store.put(arrivals([letter(error=f"order {number} failed", traceback=f"line {number % 3}") for number in range(50)]))
    assert named(store, "order") is None  # nothing is indexed yet
    store.index_text()
    assert named(store, '"order 17 failed"') == [18]
    assert named(store, r"error:*17\ failed source:orders") == [18]
    assert named(store, '"line 1"') == [number for number in range(1, 51) if number % 3 == 2]
    assert named(store, "source:orders") is None
    assert named(store, "fa") is None
    assert named(store, "nowhere") == []
    store.put(arrivals([letter(id="more", error="another")] * 55))
    assert named(store, '"order 17 failed"')[0] == 18
    assert len(named(store, '"order 17 failed"')) == 56


def test_of_a_common_text_the_index_says_nothing(store, monkeypatch):
    monkeypatch.setattr(text_index, "MOST_NAMED", 10)
    store.put(arrivals([letter(error=f"order {number} failed", traceback="always") for number in range(20)]))
    store.index_text()
    assert named(store, "failed") is None
    assert named(store, "always") is None
    assert named(store, r"failed error:*19\ failed") == [20]
    store.put(arrivals([letter(id="more")] * 12))
    assert named(store, '"order 19"') is None  # it is too far behind
    assert_same(store, Filter.parse("failed").term, all_of(store))


def test_in_postgresql_a_text_that_many_of_the_latest_letters_have_is_common(postgresql_store):
    store = postgresql_store
    emptied(store)
    store.put(arrivals([letter(error="order failed" if number % 5 == 0 else "another") for number in range(300)]))
    store.index_text()
    assert named(store, '"order failed"') is None
    assert_same(store, Filter.parse('"order failed"').term, all_of(store))
    store.put(arrivals([letter(id="more", error="another")] * 150))
    store.index_text()
    assert len(named(store, '"order failed"')) == 60


def test_a_letter_that_was_deleted_is_found_no_more(store):
    store.put(arrivals(LETTERS))
    store.index_text()
    store.change(store.select(Filter.parse("error:violin")), Change(DELETED), by="ada")
    stored = all_of(store)
    assert len(stored) == len(LETTERS) - 1
    assert_same(store, Filter.parse("violin").term, stored)
    store.put(arrivals([letter(error="guitar")]))
    store.index_text()
    assert store.count(Filter.parse("guitar")) == 1


def test_indexing_stops_when_its_time_is_over_and_goes_on_later(tmp_path):
    watch = Stopwatch(0.01)
    store = opened(f"sqlite:///{tmp_path}/fleet.db", stopwatch=watch)
    store.put(many(200))
    behind = [store.text_index().behind]
    while behind[-1]:
        behind.append(store.index_text(seconds=0.03).behind)
    assert behind[0] == 200
    assert behind == sorted(behind, reverse=True)
    assert len(behind) > 3
    store.close()


@pytest.mark.parametrize(("taken", "most"), [(0.0001, 500), (0.0025, 500), (0.005, 16), (0.05, 2), (5.0, 1)])
def test_how_many_are_indexed_at_once_follows_the_time_that_they_take(tmp_path, taken, most):
    store = opened(f"sqlite:///{tmp_path}/fleet.db", stopwatch=Stopwatch(taken))
    store.put(many(1_500))
    sizes = [store._index._at_once]
    for _ in range(9):
        store._index._step()
        sizes.append(store._index._at_once)
    assert all(later <= 2 * earlier for earlier, later in pairwise(sizes))
    assert (sizes[1] if taken >= 0.005 else max(sizes)) == most
    assert max(sizes[1:]) == most
    store.close()


def test_two_that_index_at_once_index_each_letter_once(tmp_path):
    url = f"sqlite:///{tmp_path}/fleet.db"
    store, other = opened(url), opened(url)
    store.put(many(64))
    original, added = store._database.writing, []

    @contextmanager
    def late(**options):
        other._index._step()
        with original(**options) as run:
            yield lambda statement, values: added.append(statement) or run(statement, values)

    store._database.writing = late
    store._index._step()
    assert not [statement for statement in added if statement.startswith("insert into unpoison_letter_search ")]
    store._database.writing = original
    with store._database.reading() as run:
        numbers = [number for (number,) in run(QUERY, ("err",)).fetchall()]
    assert numbers == list(range(1, 17))
    store.close()
    other.close()


def test_without_the_index_searching_is_right_too(tmp_path, database):
    without, bare = opened(f"sqlite:///{tmp_path}/fleet.db"), opened(in_new_schema(database))
    without._database.text_index = FTS5()
    without._database.text_index.is_there = lambda run: False
    bare._database.make_text_index = lambda: None
    for store in (without, bare):
        store.put(arrivals(LETTERS))
        assert store.index_text() == store.text_index() == TextIndexState(False, len(LETTERS))
        assert_same(store, Filter.parse("violin").term, all_of(store))
        assert store.page(Filter.parse("violin"), now=NOW).letters
        store.close()


def test_a_role_that_may_not_create_the_extension_has_no_index_and_the_right_letters(postgresql):
    url = postgresql.fresh()
    opened(url).close()
    role = f"clerk_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role {role} login")
        connection.execute(f"grant select, insert, update, delete on {', '.join(schema.TABLES)} to {role}")
    store = opened(f"{url}?options=-c%20role%3D{role}")
    store.put(arrivals(LETTERS))
    assert store.index_text() == TextIndexState(False, len(LETTERS))
    assert_same(store, Filter.parse("violin").term, all_of(store))
    store.close()
    administrator = opened(url)
    assert administrator.index_text() == TextIndexState(True, 0)
    administrator.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")


def test_two_stores_in_one_database_have_an_index_each(database, postgresql_store):
    postgresql_store.index_text()  # which creates the extension in its own schema
    other = opened(in_new_schema(database))
    other.put(arrivals(LETTERS))
    assert other.index_text() == TextIndexState(True, 0)
    assert_same(other, Filter.parse("violin").term, all_of(other))
    other.close()


def test_the_texts_of_a_letter_that_was_deleted_are_deleted_too(postgresql_store):
    store = postgresql_store
    emptied(store)
    store.put(arrivals(LETTERS))
    store.index_text()
    store.change(store.select(Filter.parse("violin")), Change(DELETED), by="ada")
    with store._database.reading() as run:
        left = run("select text from unpoison_letter_search", ()).fetchall()
    assert not [text for (text,) in left if "violin" in text]
    assert len(left) == store.count() > 0
