"""With an index of texts the same letters are found, and it says how far behind it is."""

from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

from tests.unit.filtering import NOW, filters, letter
from tests.unit.letter_stores import all_of, arrivals, emptied, many, opened
from tests.unit.stores import in_new_schema
from tests.unit.test_letter_filters import assert_same, stored_letters
from tests.unit.test_letter_store import Stopwatch
from unpoison.filters.filter import Filter
from unpoison.store import text_index
from unpoison.store.letter_values import DELETED, Change, TextIndexState


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    store = opened(f"sqlite:///{tmp_path_factory.mktemp('letters')}/letters.db")
    yield store
    store.close()


@pytest.fixture
def store(shared):
    emptied(shared)
    return shared


def named(store, text):
    with store._database.reading() as run:
        return store._index.candidates(run, Filter.parse(text).term)


@given(term=filters, some=stored_letters)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_letters_are_found_by_the_index(shared, term, some):
    emptied(shared)
    shared.put(arrivals(some))
    assert shared.index_text() == TextIndexState(True, 0)
    assert_same(shared, term, all_of(shared))


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
    assert named(store, "error:*17*failed source:orders") is not None
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


def test_without_the_index_searching_is_right_too(tmp_path, postgresql):
    without = opened(f"sqlite:///{tmp_path}/fleet.db")
    without._database.has_text_index = lambda run: False
    for store in (without, opened(in_new_schema(postgresql.fresh()))):
        store.put(arrivals(LETTERS))
        assert store.index_text() == store.text_index() == TextIndexState(False, len(LETTERS))
        assert_same(store, Filter.parse("violin").term, all_of(store))
        assert store.page(Filter.parse("violin"), now=NOW).letters
        store.close()
